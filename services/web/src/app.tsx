// The frame of all pages: who is logged in, the navigation, the palette, and the page itself.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { answered, api, Refused } from "./api";
import { setZone, zone } from "./format";
import { delay, follow, problem, standing } from "./live";
import { leave } from "./login";
import { pages } from "./pages";
import { Login } from "./pages/login";
import { Palette, paletteOpen } from "./palette";
import { Command, Problem } from "./parts/basics";
import { path } from "./router";
import { logOut, me, myName, refusal, token } from "./session";
import { type Choice, choice } from "./theme";

const LIVE = { loading: "loading", live: "live", away: "reconnecting" };

/** Everything in the window. */
export function App() {
  const given = token.value;
  useEffect(() => {
    if (!given) return;
    const stop = new AbortController();
    void learnWhoIAm().then((known) => {
      if (known && !stop.signal.aborted) void follow(stop.signal);
    });
    return () => stop.abort();
  }, [given]);
  if (!given) return <Login />;
  if (!me.value)
    return (
      <p class="empty" role="status">
        {refusal.value || "Loading …"}
      </p>
    );
  const shown = pages.find((page) => page.matches(path.value));
  document.title = shown ? `${shown.titleOf(path.value)} · Skep` : "Skep";
  return (
    <div class="frame">
      <a class="skip" href="#page">
        Skip to the page
      </a>
      <Side />
      <main id="page" tabIndex={-1}>
        <Problem text={problem.value} />
        {!shown ? (
          <NoPage />
        ) : shown.offered() ? (
          <shown.Page key={shown.keyOf(path.value)} />
        ) : (
          <NotOffered name={shown.name} />
        )}
      </main>
      <Palette />
    </div>
  );
}

/** Ask the gateway who has this token, until it answers. Return whether it knows. */
async function learnWhoIAm(): Promise<boolean> {
  for (;;) {
    try {
      me.value = await answered(api.GET("/v1/whoami"));
      return true;
    } catch (error) {
      if (!token.value) return false;
      refusal.value = (error as Error).message;
      if (error instanceof Refused && error.status >= 400 && error.status < 500) {
        logOut(error.message);
        return false;
      }
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
}

/** Whether the list of pages is open, where the window is too narrow to show it always. */
const menuOpen = signal(false);

function Side() {
  const shown = pages.find((page) => page.matches(path.value))?.name;
  return (
    <nav class="side" aria-label="Pages">
      <a class="brand" href="/" aria-label="Skep: overview">
        <img src="/skep.svg" alt="" />
        <span>Skep</span>
      </a>
      <button
        type="button"
        class="menu"
        aria-expanded={menuOpen.value}
        aria-controls="pages"
        onClick={() => (menuOpen.value = !menuOpen.value)}
      >
        {shown ?? "Menu"}
      </button>
      <div
        id="pages"
        class={menuOpen.value ? "pages open" : "pages"}
        onClick={() => (menuOpen.value = false)}
      >
        {pages
          .filter((page) => page.inNavigation && page.offered())
          .map((page) => (
            <a
              key={page.path}
              class="page"
              href={page.path}
              aria-current={page.matches(path.value) ? "page" : undefined}
            >
              {page.name}
            </a>
          ))}
      </div>
      <div class="foot">
        <button type="button" class="wordy" onClick={() => (paletteOpen.value = true)}>
          Go to … <kbd class="dim">Ctrl K</kbd>
        </button>
        <span
          class={`live live-${standing.value}`}
          role="status"
          title={`The last change was shown ${Math.round(delay.value)} ms after it was told.`}
        >
          {LIVE[standing.value]}
        </span>
        <label class="wordy">
          <span class="hidden">Colours</span>
          <select
            value={choice.value}
            onChange={(event) => (choice.value = event.currentTarget.value as Choice)}
          >
            <option value="system">System colours</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </label>
        <label class="wordy">
          <span class="hidden">Time zone</span>
          <select
            value={zone.value}
            onChange={(event) => setZone(event.currentTarget.value as "local" | "utc")}
          >
            <option value="local">Local time</option>
            <option value="utc">UTC</option>
          </select>
        </label>
        <a class="wordy" href="/me" title="Your roles and tokens">
          {myName.value}
        </a>
        <button type="button" onClick={() => void leave()}>
          Log out
        </button>
      </div>
    </nav>
  );
}

function NotOffered({ name }: { name: string }) {
  return (
    <>
      <h1>{name}</h1>
      <p>
        Your roles do not reach this page. A manager of a virtual cluster can give you another one.
      </p>
      <p>
        <Command line="skep whoami" />
      </p>
    </>
  );
}

function NoPage() {
  return (
    <>
      <h1>There is no such page</h1>
      <p>
        The address names no page of this cluster. Go on with <a href="/">the overview</a>.
      </p>
    </>
  );
}

// The tokens of a person: where each was made and used, how one is made, and how it is revoked.

import { useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { clock } from "../format";
import { leave } from "../login";
import { isOwn, me } from "../session";
import { At, Card, Command, Dialog, Empty, Problem, Wide } from "./basics";
import { Confirm, type Confirmed } from "./confirm";
import { quoted } from "./line";
import { Word } from "./word";

type Token = Schemas["TokenTold"];
type Made = Schemas["TokenMade"];

const LOOKS: Record<string, string> = {
  valid: "succeeded",
  expired: "cancelled",
  revoked: "refused",
};
const DAYS = 90;
const DAYS_MOST = 3650;

/** The tokens of one person: those that are valid first, the latest first. */
export function Tokens({ person }: { person: string }) {
  const own = person === me.value?.person;
  const [asks, setAsks] = useState(0);
  const [ask, setAsk] = useState<Confirmed | null>(null);
  const [ended, setEnded] = useState(false);
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/tokens", { params: { query: { person } } })),
    [person, asks],
  );
  const again = () => setAsks((n) => n + 1);
  const all = (value?.tokens ?? []).toSorted((a, b) => b.at - a.at);
  const valid = all.filter((one) => one.state === "valid");
  const shown = ended ? [...valid, ...all.filter((one) => one.state !== "valid")] : valid;
  return (
    <Card
      title="Tokens"
      aside={<Command line={own ? "skep token ls" : `skep token ls --person ${person}`} />}
    >
      <Problem text={problem} />
      {value && !shown.length && (
        <Empty>
          {own ? "You have" : `${person} has`} no token that is valid: make one below, for each
          device or program that asks this cluster.
        </Empty>
      )}
      {value && shown.length > 0 && (
        <Table
          tokens={shown}
          since={value.used_since ?? 0}
          onRevoke={(token) => setAsk(revoke(token, again))}
        />
      )}
      {all.length > valid.length && (
        <p class="inside">
          <button type="button" aria-pressed={ended} onClick={() => setEnded(!ended)}>
            {all.length - valid.length} that ended
          </button>
        </p>
      )}
      {value && <Make person={person} own={own} onMade={again} />}
      {ask && <Confirm ask={ask} onClose={() => setAsk(null)} />}
    </Card>
  );
}

function Table(props: { tokens: Token[]; since: number; onRevoke: (token: Token) => void }) {
  const here = me.value?.token?.token;
  return (
    <>
      <Wide label="Tokens">
        <table class="plain">
          <thead>
            <tr>
              <th>Name</th>
              <th>State</th>
              <th>Made</th>
              <th>Last used</th>
              <th>Valid until</th>
              <th>Id</th>
              <th>
                <span class="hidden">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {props.tokens.map((one) => (
              <tr key={one.token}>
                <td>
                  {one.name} {one.token === here && <span class="chip">this page</span>}
                </td>
                <td>
                  <Word as={LOOKS[one.state] ?? ""} text={one.state} />
                </td>
                <td>
                  <At at={one.at} />
                  {one.by && <span class="dim"> with {one.by}</span>}
                </td>
                <td>{one.used_at ? <At at={one.used_at} /> : <span class="dim">–</span>}</td>
                <td>
                  <At at={one.expires_at} />
                </td>
                <td>
                  <code>{one.token}</code>
                </td>
                <td>
                  {one.state === "valid" && (
                    <button
                      type="button"
                      class="quiet"
                      aria-label={`Revoke ${one.name} ${one.token}`}
                      onClick={() => props.onRevoke(one)}
                    >
                      revoke
                    </button>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
      {props.since > 0 && (
        <p class="inside dim">
          Uses are known since this gateway began, {clock(props.since)}; another gateway knows its
          own. “with” names the token by which another one was made.
        </p>
      )}
    </>
  );
}

function revoke(token: Token, done: () => void): Confirmed {
  const here = token.token === me.value?.token?.token;
  return {
    title: `Revoke the token ${token.name}`,
    verb: "Revoke",
    danger: true,
    line: `skep token revoke ${token.token}`,
    text: (
      <p>
        Whatever uses it is refused from now on, and so are tokens that were made by it.
        {here && " It is the token of this page: you are logged out here."}
      </p>
    ),
    run: () =>
      here
        ? leave(true)
        : answered(
            api.POST("/v1/tokens/{token}/revoke", { params: { path: { token: token.token } } }),
          ),
    done,
  };
}

function Make({ person, own, onMade }: { person: string; own: boolean; onMade: () => void }) {
  const [name, setName] = useState("");
  const [days, setDays] = useState(String(DAYS));
  const [made, setMade] = useState<Made | null>(null);
  const [ask, setAsk] = useState<Confirmed | null>(null);
  const make = (): Confirmed => ({
    title: own ? `Make the token ${name}` : `Make the token ${name} for ${person}`,
    verb: "Make it",
    line: [
      `skep token create ${quoted(name.trim())}`,
      own ? "" : `--person ${person}`,
      Number(days) === DAYS ? "" : `--days ${days}`,
    ]
      .filter(Boolean)
      .join(" "),
    text: <p>Its text is shown once, and kept nowhere.</p>,
    run: async () =>
      setMade(
        await answered(
          api.POST("/v1/tokens", {
            body: { name: name.trim(), days: Number(days), person },
          }),
        ),
      ),
    done: onMade,
  });
  return (
    <>
      <form
        class="controls inside"
        onSubmit={(event) => {
          event.preventDefault();
          setAsk(make());
        }}
      >
        <input
          required
          pattern=".*\S.*"
          maxLength={128}
          aria-label="What the new token is for"
          placeholder="A device or a program"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <label>
          valid{" "}
          <input
            type="number"
            required
            min={1}
            max={DAYS_MOST}
            value={days}
            onInput={(event) => setDays(event.currentTarget.value)}
          />{" "}
          days
        </label>
        <button>Make a token</button>
      </form>
      {own && isOwn() && (
        <p class="inside dim">
          Your login to this page makes it, and <i>Log out</i> revokes what that made. One that is
          made in a terminal stays: <Command line="skep token create NAME" />
        </p>
      )}
      {ask && <Confirm ask={ask} onClose={() => setAsk(null)} />}
      {made && !ask && <Shown made={made} onClose={() => setMade(null)} />}
    </>
  );
}

/** The text of a token that was made: it is shown until the dialog is closed. */
function Shown({ made, onClose }: { made: Made; onClose: () => void }) {
  return (
    <Dialog title={`The token ${made.name}`} onClose={onClose}>
      <p>Copy it now: it is not shown again. Whoever has it is {made.person} here.</p>
      <p>
        <Command line={made.text} />
      </p>
      <p class="dim">
        Log in with it by <Command line={`skep login ${location.origin} --token`} />, valid until{" "}
        {clock(made.expires_at)}.
      </p>
      <div class="buttons">
        <button type="button" class="strong" onClick={onClose}>
          Done
        </button>
      </div>
    </Dialog>
  );
}

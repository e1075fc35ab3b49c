// Small parts that every page is made of.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { away, clock, instant } from "../format";

/** A state with its colour, and its word: colour alone says nothing to some people. */
export function State({ state, title }: { state: string; title?: string }) {
  return (
    <span class={`state ${state}`} title={title}>
      {state}
    </span>
  );
}

/** An instant: the time, with the distance from now as title (or the other way round). */
export function At({
  at,
  distance = false,
}: {
  at: number | null | undefined;
  distance?: boolean;
}) {
  if (!at) return <span class="dim">–</span>;
  const [shown, title] = distance ? [away(at), clock(at)] : [clock(at), away(at)];
  return (
    <time dateTime={instant(at)} title={`${title} (${instant(at)})`}>
      {shown}
    </time>
  );
}

/** A part of a page with its heading. */
export function Card(props: {
  title: ComponentChildren;
  aside?: ComponentChildren;
  children?: ComponentChildren;
  class?: string;
}) {
  return (
    <section class={`card ${props.class ?? ""}`}>
      <header>
        <h2>{props.title}</h2>
        {props.aside}
      </header>
      {props.children}
    </section>
  );
}

/** What to say where there is nothing: what that means, and what to do. */
export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

/** A sentence of the gateway's: what it has between backticks is typed somewhere. */
export function Said({ text }: { text: string }) {
  return (
    <>
      {text.split("`").map((part, place) => (place % 2 ? <code key={place}>{part}</code> : part))}
    </>
  );
}

/** A problem, read out by screen readers when it appears. */
export function Problem({ text }: { text: string }) {
  return text ? (
    <p class="problem" role="alert">
      {text}
    </p>
  ) : null;
}

/** A `skep` command that does what the page does, with a button that copies it. */
export function Command({ line }: { line: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(line);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <span class="command">
      <code>{line}</code>
      <button type="button" class="quiet" onClick={() => void copy()} aria-label={`Copy: ${line}`}>
        {copied ? "copied" : "copy"}
      </button>
    </span>
  );
}

/** How far something is, as a bar; `parts` are fractions of the whole with their classes. */
export function Bar({ parts, label }: { parts: [string, number][]; label: string }) {
  return (
    <span class="bar" role="img" aria-label={label} title={label}>
      {parts.map(([name, part]) => (
        <i key={name} class={name} style={{ width: `${100 * Math.min(1, Math.max(0, part))}%` }} />
      ))}
    </span>
  );
}

/** A dialog before which the rest of the page waits. Escape and a click beside it close it. */
export function Dialog(props: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  class?: string;
}) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => box.current?.showModal(), []);
  return (
    <dialog
      ref={box}
      class={props.class}
      aria-label={props.title}
      onClose={props.onClose}
      onClick={(event) => event.target === box.current && box.current?.close()}
    >
      <h2>{props.title}</h2>
      {props.children}
    </dialog>
  );
}

/** Links between parts of one page. The chosen one is in the address. */
export function Tabs(props: {
  tabs: [string, string][];
  chosen: string;
  to: (tab: string) => string;
}) {
  const box = useRef<HTMLElement>(null);
  // Where there is no room for all, the chosen one is in view.
  useEffect(() => {
    const [nav, link] = [box.current, box.current?.querySelector("[aria-current]")];
    if (!nav || !link) return;
    const [around, own] = [nav.getBoundingClientRect(), link.getBoundingClientRect()];
    if (own.left < around.left || own.right > around.right)
      nav.scrollLeft += (own.left + own.right - around.left - around.right) / 2;
  }, [props.chosen]);
  return (
    <nav class="tabs" ref={box} aria-label="Parts of this page">
      {props.tabs.map(([tab, text]) => (
        <a key={tab} href={props.to(tab)} aria-current={tab === props.chosen ? "page" : undefined}>
          {text}
        </a>
      ))}
    </nav>
  );
}

/** What may be wider than the window: it scrolls by itself, by keyboard too. */
export function Wide({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="wide" tabIndex={0} role="region" aria-label={label}>
      {children}
    </div>
  );
}

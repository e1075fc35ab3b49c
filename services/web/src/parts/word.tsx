// A word with the mark and the colour of a state that is as good, or as bad.

/** `as` is the state that it looks like; `text` is what it says. */
export function Word({ as, text, title }: { as: string; text: string; title?: string }) {
  return (
    <span class={`state ${as}`} title={title}>
      {text}
    </span>
  );
}

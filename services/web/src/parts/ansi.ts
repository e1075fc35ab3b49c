// Output of programs as text with colours: the sequences of terminals that say colours are kept,
// all others are left out, and nothing of it is ever markup.

/** A stretch of a line: its text, and the classes of its colours. */
export interface Piece {
  text: string;
  style: string;
}

/** What a line cannot be longer than when it is shown; the download has the whole. */
export const SHOWN_CHARACTERS = 4000;

/** What the sequences before have set. */
export interface Pen {
  colour: string;
  bold: boolean;
  dim: boolean;
}

export const PLAIN: Pen = { colour: "", bold: false, dim: false };

const COLOURS = ["dim", "bad", "good", "warn", "busy", "honey", "busy", ""];
// CSI, OSC (ended by BEL or ST), and the short ones; an OSC without its end stops at the line's.
const SEQUENCE = /\x1b(?:\[([0-9;:]*)([ -/]*[@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])/g;
// Other control characters would show as boxes.
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f]/g;

/** Return a line's stretches, and the pen behind it. A progress bar shows as it was at last. */
export function pieces(line: string, pen: Pen): { shown: Piece[]; pen: Pen; more: number } {
  const last = line.replace(/\r+$/, "");
  const text = last.slice(last.lastIndexOf("\r") + 1);
  const cut = text.slice(0, SHOWN_CHARACTERS);
  const shown: Piece[] = [];
  let place = 0;
  const add = (to: number) => {
    const told = cut.slice(place, to).replace(CONTROL, "");
    if (told) shown.push({ text: told, style: styleOf(pen) });
  };
  for (const match of cut.matchAll(SEQUENCE)) {
    add(match.index);
    place = match.index + match[0].length;
    if (match[2] === "m") pen = drawn(match[1] ?? "", pen);
  }
  add(cut.length);
  return { shown, pen, more: text.length - cut.length };
}

/** Return a text without any sequence. */
export const plain = (text: string): string => text.replace(SEQUENCE, "").replace(CONTROL, "");

const styleOf = (pen: Pen): string =>
  [pen.colour && `ansi-${pen.colour}`, pen.bold && "ansi-bold", pen.dim && "ansi-dim"]
    .filter(Boolean)
    .join(" ");

function drawn(parameters: string, before: Pen): Pen {
  let pen = before;
  const codes = parameters.split(/[;:]/).map(Number);
  for (let place = 0; place < codes.length; place += 1) {
    const code = codes[place] ?? 0;
    // Colours of a palette or by parts (38;5;n, 38;2;r;g;b) are not told apart: they are marked.
    if (code === 38 || code === 48) {
      place += codes[place + 1] === 5 ? 2 : 4;
      if (code === 38) pen = { ...pen, colour: "honey" };
    } else pen = stepped(code, pen);
  }
  return pen;
}

function stepped(code: number, pen: Pen): Pen {
  if (code === 0) return PLAIN;
  if (code === 1) return { ...pen, bold: true };
  if (code === 2) return { ...pen, dim: true };
  if (code === 22) return { ...pen, bold: false, dim: false };
  if (code === 39) return { ...pen, colour: "" };
  if (code >= 30 && code <= 37) return { ...pen, colour: COLOURS[code - 30] ?? "" };
  if (code >= 90 && code <= 97) return { ...pen, colour: COLOURS[code - 90] ?? "" };
  return pen;
}

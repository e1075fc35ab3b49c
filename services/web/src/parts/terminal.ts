// A terminal in a running job: xterm.js, joined to the gateway's session over a WebSocket.
//
// Frames are those of `skep exec`: one byte says the kind, the rest is its body. Each end sends at
// most a window more than the other says it has used. This file is loaded when a terminal is opened.

import "@xterm/xterm/css/xterm.css";

import { CanvasAddon } from "@xterm/addon-canvas";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";

import { token } from "../session";

const WINDOW_BYTES = 256 * 1024;
const DATA_BYTES = 32 * 1024;
const FRAME_COST = 64;
const ALIVE_EVERY_MS = 5000;

/** How a session ended. */
export interface Over {
  code?: number;
  reason?: string;
  text?: string;
}

export interface Session {
  /** End the session: the command is hung up on. */
  close: () => void;
  focus: () => void;
}

interface Wanted {
  job: string;
  rank: number;
  argv: string[];
  colours: (name: string) => string;
  onOpened: () => void;
  onOver: (over: Over) => void;
}

/** Open a terminal in an element, and run a command in it. */
export function openTerminal(element: HTMLElement, wanted: Wanted): Session {
  const dressed = new Dressed();
  const { colours } = wanted;
  const terminal = new Terminal({
    documentOverride: dressed.document,
    cursorBlink: false,
    fontSize: 13,
    scrollback: 5000,
    fontFamily: 'ui-monospace, "SF Mono", Menlo, Consolas, monospace',
    screenReaderMode: true,
    theme: {
      background: colours("card"),
      foreground: colours("text"),
      cursor: colours("text"),
      selectionBackground: colours("edge"),
      red: colours("bad"),
      green: colours("good"),
      yellow: colours("warn"),
      blue: colours("busy"),
    },
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(element);
  // Colours of single characters are drawn: as elements they would need styles in the markup.
  terminal.loadAddon(new CanvasAddon());
  fit.fit();
  const line = new Line(wanted, terminal);
  const sizes = new ResizeObserver(() => fit.fit());
  sizes.observe(element);
  terminal.onResize(({ rows, cols }) => line.resize(rows, cols));
  terminal.onData((text) => line.type(new TextEncoder().encode(text)));
  terminal.onBinary((text) => line.type(Uint8Array.from(text, (each) => each.charCodeAt(0))));
  return {
    close: () => {
      sizes.disconnect();
      line.close();
      terminal.dispose();
      dressed.close();
    },
    focus: () => terminal.focus(),
  };
}

/** A session: what is typed goes up, what is printed comes down, both within their windows. */
class Line {
  private readonly socket: WebSocket;
  private readonly timer: ReturnType<typeof setInterval>;
  private over = false;
  private opened = false;
  private sent = 0;
  private taken = 0;
  private printed = 0;
  private waiting: Uint8Array[] = [];
  private last: Over | null = null;

  constructor(
    private readonly wanted: Wanted,
    private readonly terminal: Terminal,
  ) {
    const base = location.origin.replace(/^http/, "ws");
    const secret = btoa(String.fromCharCode(...new TextEncoder().encode(token.value)))
      .replaceAll("+", "-")
      .replaceAll("/", "_")
      .replace(/=+$/, "");
    // A browser sends no header with a WebSocket: the token is in the name of a protocol.
    this.socket = new WebSocket(`${base}/v1/jobs/${encodeURIComponent(wanted.job)}/terminal`, [
      "skep.terminal",
      `skep.bearer.${secret}`,
    ]);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () =>
      this.say(
        "o",
        JSON.stringify({
          what: "exec",
          argv: wanted.argv,
          rank: wanted.rank,
          terminal: true,
          rows: terminal.rows,
          columns: terminal.cols,
          term: "xterm-256color",
        }),
      );
    this.socket.onmessage = ({ data }) => this.hear(new Uint8Array(data as ArrayBuffer));
    this.socket.onclose = () =>
      this.end(
        this.last ?? {
          text: this.opened
            ? "The session was lost: the gateway or the node has gone."
            : "The gateway did not open a session: the job may be gone, or you may not run commands in it.",
        },
      );
    this.timer = setInterval(() => this.say("a"), ALIVE_EVERY_MS);
  }

  /** Send what was typed, as far as the agent has used what came before. */
  type(bytes: Uint8Array): void {
    for (let place = 0; place < bytes.length; place += DATA_BYTES) {
      this.waiting.push(bytes.slice(place, place + DATA_BYTES));
    }
    this.flow();
  }

  resize(rows: number, columns: number): void {
    const body = new DataView(new ArrayBuffer(4));
    body.setUint16(0, rows);
    body.setUint16(2, columns);
    if (this.opened) this.say("r", new Uint8Array(body.buffer));
  }

  close(): void {
    this.say("c");
    this.over = true;
    clearInterval(this.timer);
    this.socket.close();
  }

  private flow(): void {
    while (this.opened) {
      const [next] = this.waiting;
      if (!next || this.sent + next.length + FRAME_COST - this.taken > WINDOW_BYTES) return;
      this.waiting.shift();
      this.sent += next.length + FRAME_COST;
      this.say("i", next);
    }
  }

  private hear(frame: Uint8Array): void {
    const body = frame.slice(1);
    switch (String.fromCharCode(frame[0] ?? 0)) {
      case "b":
        this.opened = true;
        this.wanted.onOpened();
        this.resize(this.terminal.rows, this.terminal.cols);
        this.flow();
        break;
      case "1":
      case "2":
        // What is on the screen has been used: a terminal that cannot keep up holds the command.
        this.terminal.write(body, () => {
          this.printed += body.length + FRAME_COST;
          this.say("u", number(this.printed));
        });
        break;
      case "u":
        this.taken = Number(new DataView(body.buffer).getBigUint64(0));
        this.flow();
        break;
      case "x":
        this.last = JSON.parse(new TextDecoder().decode(body)) as Over;
        this.terminal.write("", () => this.end(this.last ?? {}));
        break;
      default:
    }
  }

  private end(over: Over): void {
    if (this.over) return;
    this.over = true;
    clearInterval(this.timer);
    this.socket.close();
    this.wanted.onOver(over);
  }

  private say(kind: string, body: string | Uint8Array = ""): void {
    if (this.over || this.socket.readyState !== WebSocket.OPEN) return;
    const told = typeof body === "string" ? new TextEncoder().encode(body) : body;
    const frame = new Uint8Array(told.length + 1);
    frame[0] = kind.charCodeAt(0);
    frame.set(told, 1);
    this.socket.send(frame);
  }
}

function number(value: number): Uint8Array {
  const body = new DataView(new ArrayBuffer(8));
  body.setBigUint64(0, BigInt(value));
  return new Uint8Array(body.buffer);
}

/** The document that xterm.js makes its elements with. The policy of the page allows no style
 * that stands in an element, so its style elements become sheets that the page adopts. */
class Dressed {
  readonly document: Document;
  private readonly sheets: CSSStyleSheet[] = [];

  constructor() {
    this.document = new Proxy(document, {
      get: (own, name) => {
        if (name === "createElement") {
          return (kind: string) => (kind === "style" ? this.sheet() : own.createElement(kind));
        }
        const value: unknown = Reflect.get(own, name, own);
        return typeof value === "function" ? (value as () => unknown).bind(own) : value;
      },
    });
  }

  close(): void {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter(
      (sheet) => !this.sheets.includes(sheet),
    );
  }

  private sheet(): HTMLElement {
    const sheet = new CSSStyleSheet();
    this.sheets.push(sheet);
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    const element = document.createElement("template");
    Object.defineProperty(element, "textContent", {
      set: (text: string) => sheet.replaceSync(text),
    });
    return element;
  }
}

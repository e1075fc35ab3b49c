// Numbers and times as people read them. Instants are Unix nanoseconds, as in the API.

import { signal } from "@preact/signals";

export const NS = 1e9;

const ZONE_KEY = "skep-zone";

/** `local`: the browser's time zone; `utc`: the one that logs of machines have. */
export const zone = signal<"local" | "utc">(
  localStorage.getItem(ZONE_KEY) === "utc" ? "utc" : "local",
);

/** Show times in the other zone from now on. */
export function setZone(next: "local" | "utc"): void {
  localStorage.setItem(ZONE_KEY, next);
  zone.value = next;
}

/** The present, which moves once a second. */
export const now = signal(Date.now() * 1e6);
setInterval(() => {
  if (!document.hidden) now.value = Date.now() * 1e6;
}, 1000);

/** Return a length of time: `42 s`, `12 min`, `3.5 h`, `4 d`. */
export function length(ns: number): string {
  const s = Math.max(0, ns / NS);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172_800) return `${(s / 3600).toFixed(s < 36_000 ? 1 : 0)} h`;
  return `${Math.floor(s / 86_400)} d`;
}

/** Return how long ago something was, or until it is. */
export const away = (at: number): string =>
  at <= now.value ? `${length(now.value - at)} ago` : `in ${length(at - now.value)}`;

/** Formatters by what they show: to make one takes longer than to use it a hundred times. */
const formats = new Map<string, Intl.DateTimeFormat>();

function format(date: Date, locale: string, options: Intl.DateTimeFormatOptions): string {
  const key = `${zone.value} ${locale} ${Object.keys(options).join()}`;
  let found = formats.get(key);
  if (!found) {
    const timeZone = zone.value === "utc" ? "UTC" : undefined;
    formats.set(key, (found = new Intl.DateTimeFormat(locale, { ...options, timeZone })));
  }
  return found.format(date);
}

const DAY: Intl.DateTimeFormatOptions = { year: "numeric", month: "2-digit", day: "2-digit" };
const MINUTE: Intl.DateTimeFormatOptions = {
  hour: "2-digit",
  minute: "2-digit",
  hourCycle: "h23",
};
const SECOND: Intl.DateTimeFormatOptions = { ...MINUTE, second: "2-digit" };

/** Return the day of a time: `2026-11-27`. */
export const dayOf = (date: Date): string => format(date, "en-CA", DAY);

/** Return the time of the day, to the minute or (`fine`) to the second. */
export const timeOf = (date: Date, fine: boolean): string =>
  format(date, "en-GB", fine ? SECOND : MINUTE);

/** Return a time of the day, with the day where it is another one. */
export function clock(at: number): string {
  const date = new Date(at / 1e6);
  const distance = Math.abs(at - now.value) / NS;
  const told = timeOf(date, distance < 600);
  if (dayOf(date) === dayOf(new Date(now.value / 1e6))) return told;
  if (distance < 5 * 86_400) return `${format(date, "en-GB", { weekday: "short" })} ${told}`;
  return `${dayOf(date)} ${told}`;
}

/** Return an instant in full, for titles. */
export const instant = (at: number): string => new Date(at / 1e6).toISOString();

/** Return a rate of mini-batches. `milli`: thousandths of a mini-batch per second. */
export const rate = (milli: number | null | undefined): string =>
  milli === null || milli === undefined ? "" : `${(milli / 1000).toPrecision(3)}/s`;

/** Return a number with its thousands apart. */
export const count = (value: number): string => numbers.format(value);

const numbers = new Intl.NumberFormat("en-US");

/** Return a part of a whole in percent. */
export const percent = (part: number, whole: number): string =>
  whole > 0 ? `${Math.round((100 * part) / whole)}\u00a0%` : "–";

/** Return a size of memory or of a file. */
export function bytes(size: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toPrecision(2)} ${units[unit]}`;
}

/** Return a noun with its number: `1 job`, `2 jobs`. */
export const many = (n: number, one: string, more = `${one}s`): string =>
  `${count(n)} ${n === 1 ? one : more}`;

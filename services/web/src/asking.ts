// What is asked of the gateway once, and asked again when something about it has changed.

import { useEffect, useRef, useState } from "preact/hooks";

import { Refused } from "./api";
import { returns } from "./live";

export interface Asked<T> {
  value: T | null;
  problem: string;
}

/** Ask, and ask again whenever one of `needs` changes and when the gateway was away and is back; what
 * was answered stays meanwhile. */
export function useAsked<T>(ask: () => Promise<T>, needs: unknown[]): Asked<T> {
  const [asked, setAsked] = useState<Asked<T>>({ value: null, problem: "" });
  useEffect(() => {
    let over = false;
    ask().then(
      (value) => over || setAsked({ value, problem: "" }),
      (error: Error) => over || setAsked((before) => ({ ...before, problem: sayFailed(error) })),
    );
    return () => {
      over = true;
    };
  }, [...needs, returns.value]);
  return asked;
}

const sayFailed = (error: Error): string =>
  error instanceof Refused && error.status === 0
    ? "The gateway does not answer. It is asked again when it is back."
    : error.message;

/** Return a value that follows another one, but changes at most once in so many milliseconds. */
export function useSettled<T>(value: T, ms: number): T {
  const [settled, setSettled] = useState(value);
  const last = useRef(0);
  useEffect(() => {
    const wait = Math.max(0, last.current + ms - performance.now());
    const timer = setTimeout(() => {
      last.current = performance.now();
      setSettled(value);
    }, wait);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

const ANEW_MS = 2000;
const ANEW_TIMES = 20;

/** Ask, and ask again when `version` is another one: at most every two seconds, and so many times less
 * often than it takes to get the answer. What changes all the time is a whole answer each time. */
export function useAnew<T>(ask: () => Promise<T>, version: number, needs: unknown[]): Asked<T> {
  const took = useRef(0);
  const changes = useSettled(version, Math.max(ANEW_MS, ANEW_TIMES * took.current));
  const timed = async () => {
    const began = performance.now();
    const value = await ask();
    took.current = performance.now() - began;
    return value;
  };
  return useAsked(timed, [...needs, changes]);
}

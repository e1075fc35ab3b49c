// What is asked of the gateway once, and asked again when something about it has changed.

import { useEffect, useRef, useState } from "preact/hooks";

export interface Asked<T> {
  value: T | null;
  problem: string;
}

/** Ask, and ask again whenever one of `needs` changes; what was answered stays meanwhile. */
export function useAsked<T>(ask: () => Promise<T>, needs: unknown[]): Asked<T> {
  const [asked, setAsked] = useState<Asked<T>>({ value: null, problem: "" });
  useEffect(() => {
    let over = false;
    ask().then(
      (value) => over || setAsked({ value, problem: "" }),
      (error: Error) => over || setAsked((before) => ({ ...before, problem: error.message })),
    );
    return () => {
      over = true;
    };
  }, needs);
  return asked;
}

/** Return a value that changes all the time, as it was at most `ms` ago: what needs it is asked
 * for seldom, and not at all while the value stays. */
export function useSeldom<T>(value: T, ms: number): T {
  const [shown, setShown] = useState(value);
  const latest = useRef(value);
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  latest.current = value;
  useEffect(() => {
    if (Object.is(value, shown) || timer.current !== null) return;
    timer.current = setTimeout(() => {
      timer.current = null;
      setShown(latest.current);
    }, ms);
  }, [value, shown]);
  useEffect(() => () => {
    if (timer.current !== null) clearTimeout(timer.current);
  }, []);
  return shown;
}

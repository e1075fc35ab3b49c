// Parameters of trials, and the metric that they come to, as people read them.

export type Params = Record<string, unknown>;

const FIGURES = 4;

/** Return a number with as many figures as tell trials apart. */
export function figure(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e6)
    ? value.toExponential(FIGURES - 2)
    : String(Number(value.toPrecision(FIGURES)));
}

/** Return the value of a parameter. */
export const sayParam = (value: unknown): string =>
  typeof value === "number"
    ? figure(value)
    : typeof value === "string"
      ? value
      : JSON.stringify(value);

/** Return all parameters in one line: `lr=0.01 layers=2`. */
export const sayParams = (params: Params): string =>
  Object.entries(params)
    .map(([name, value]) => `${name}=${sayParam(value)}`)
    .join(" ");

/** Which state of a job the state of a search looks like. */
export const SEARCH_LOOKS: Record<string, string> = {
  active: "running",
  ending: "stopping",
  over: "succeeded",
};

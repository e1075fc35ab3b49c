// A figure with the interval it lies in, drawn on a line with its zero.

interface Props {
  /** In thousandths, as the API has them. */
  value: number;
  low: number;
  high: number;
  /** What is drawn lies between these, so that rows can be compared. */
  from: number;
  to: number;
  good: boolean;
}

const WIDTH = 160;
const HEIGHT = 18;

/** Return thousandths as percent, with their sign. */
export const gained = (milli: number): string =>
  `${milli > 0 ? "+" : milli < 0 ? "−" : ""}${(Math.abs(milli) / 10).toFixed(1)} %`;

/** Return a figure with its interval in words. */
export const spanText = (value: number, low: number, high: number): string =>
  `${gained(value)} (${gained(low)} to ${gained(high)})`;

/** The picture: a bar from low to high, a mark at the value, a line at zero. */
export function Span(props: Props) {
  const { value, low, high, from, to } = props;
  const place = (milli: number) =>
    2 + (WIDTH - 4) * Math.min(1, Math.max(0, (milli - from) / Math.max(1, to - from)));
  const [left, right] = [place(low), place(high)];
  return (
    <svg
      class={`span ${props.good ? "good" : "dim"}`}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      role="img"
      aria-label={spanText(value, low, high)}
    >
      <line class="zero" x1={place(0)} x2={place(0)} y1="0" y2={HEIGHT} />
      <rect x={left} y="6" width={Math.max(2, right - left)} height="6" rx="3" />
      <circle cx={place(value)} cy={HEIGHT / 2} r="4.5" />
    </svg>
  );
}

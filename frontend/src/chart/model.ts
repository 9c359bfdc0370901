// The data of a chart and its arithmetic: gaps, stacks, ranges, labels. No drawing.
import { absolute } from "../ui/time";

export interface Line {
  label: string;
  /** One for each of `times`; null: not known then. */
  values: readonly (number | null)[];
  /** A colour name of the style sheet, as "cell-busy"; default: by position. */
  colour?: string;
}

export interface ChartData {
  /** A description for screen readers. */
  label: string;
  unit: string;
  /** Seconds since the epoch, ascending. */
  times: readonly number[];
  lines: readonly Line[];
  /** Bars are stacked, each `step` wide from its time on. */
  kind?: "line" | "bars";
  /** Seconds from one time to the next while nothing is missing; more than twice that is a gap. */
  step: number;
  /** The ends of the time axis; else those of `times`. */
  from?: number;
  until?: number;
  /** The minimum top of the axis, such as 100 for percent. */
  axisTop?: number;
  height?: number;
  /** Charts of a group share a cursor. */
  group?: string;
}

export type Interval = readonly [from: number, until: number];

/** The ends of the time axis. */
export function ends(data: ChartData): Interval {
  const first = data.times[0] ?? 0;
  const last = (data.times.at(-1) ?? 1) + (data.kind === "bars" ? data.step : 0);
  const from = data.from ?? first;
  return [from, Math.max(data.until ?? last, from + 1)];
}

/** Return the unknown periods: before the first, after the last and between distant known times. */
export function gaps(data: ChartData): Interval[] {
  const [from, until] = ends(data);
  if (data.kind === "bars") return [];
  const result: Interval[] = [];
  let lastKnown = from;
  data.times.forEach((at, index) => {
    if (data.lines.every((line) => (line.values[index] ?? null) === null)) return;
    if (at - lastKnown > 2.5 * data.step) result.push([lastKnown, at]);
    lastKnown = at;
  });
  if (until - lastKnown > 2.5 * data.step) result.push([lastKnown, until]);
  return result;
}

/** Return times and values for drawing; a gap breaks each line. */
export function broken(data: ChartData): { times: number[]; values: (number | null)[][] } {
  const times: number[] = [];
  const values: (number | null)[][] = data.lines.map(() => []);
  data.times.forEach((at, index) => {
    const previous = data.times[index - 1];
    if (data.kind !== "bars" && previous !== undefined && at - previous > 2.5 * data.step) {
      times.push(previous + data.step);
      for (const list of values) list.push(null);
    }
    times.push(at);
    data.lines.forEach((line, number) => values[number]?.push(line.values[index] ?? null));
  });
  return { times, values };
}

/** Stack the lines; unknown values add nothing. The last line has the totals. */
export function stacked(values: readonly (readonly (number | null)[])[]): (number | null)[][] {
  const sums: number[] = [];
  return values.map((list) =>
    list.map((value, index) => {
      sums[index] = (sums[index] ?? 0) + (value ?? 0);
      return sums[index] ?? 0;
    }),
  );
}

/** Return the top of the axis: the maximum of values and `most`, with a margin; 1 without data. */
export function top(data: ChartData): number {
  const values = data.kind === "bars" ? (stacked(data.lines.map((line) => line.values)).at(-1) ?? []) : data.lines.flatMap((line) => [...line.values]);
  const highest = values.reduce<number>((maximum, value) => Math.max(maximum, value ?? 0), 0);
  return Math.max(data.axisTop ?? 0, highest * (highest > (data.axisTop ?? 0) ? 1.05 : 1)) || 1;
}

const DAY_SECONDS = 86_400;

/** Return whether the bars are days (UTC). */
export function ofDays(data: ChartData): boolean {
  return data.kind === "bars" && data.step === DAY_SECONDS;
}

const DAY = { timeZone: "UTC", month: "short", day: "numeric" } as const;

/** Format a moment: a day, or local day and time. */
export function moment(at: number, isDay: boolean): string {
  const date = new Date(at * 1000);
  return isDay ? date.toLocaleDateString("en-GB", { ...DAY, year: "numeric" }) : absolute(at * 1000);
}

/** Format an axis mark by the distance of marks: a day, a minute or a second; empty between days. */
export function mark(at: number, apart: number, isDay: boolean): string {
  const date = new Date(at * 1000);
  if (isDay) return at % DAY_SECONDS === 0 ? date.toLocaleDateString("en-GB", DAY) : "";
  if (apart >= DAY_SECONDS) return date.toLocaleDateString("en-GB", { month: "short", day: "numeric" });
  return date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(apart < 60 ? { second: "2-digit" } : {}) });
}

/** Format three significant digits: 0.25, 12.5, 1,250. */
export function short(value: number): string {
  return Number(value.toPrecision(3)).toLocaleString("en");
}

export function formatValue(value: number | null | undefined, unit: string): string {
  return value === null || value === undefined ? "n/a" : `${short(value)}${unit === "%" || unit === "" ? "" : " "}${unit}`;
}

/** Describe a chart in one sentence. */
export function sentence(data: ChartData): string {
  const parts = data.lines.map((line) => {
    const values = line.values.filter((value) => value !== null);
    if (values.length === 0) return `${line.label} n/a`;
    if (data.kind === "bars") return `${line.label} ${formatValue(values.reduce((sum, value) => sum + value, 0), data.unit)} in all`;
    return `${line.label} from ${formatValue(Math.min(...values), data.unit)} to ${formatValue(Math.max(...values), data.unit)}`;
  });
  return `${data.label}: ${parts.join("; ") || "no data"}`;
}

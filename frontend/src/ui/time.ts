// Format times: relative, durations, clock; and update the times on the page.
import { type Child, h } from "./dom";
import { MOMENT } from "./constants";

let skew = 0;

/** Return the estimated server time. Relative times use it, not this machine's clock. */
export function serverNow(): number {
  return Date.now() + skew;
}

export function learnServerTime(iso: string): void {
  const then = Date.parse(iso);
  if (!Number.isNaN(then)) skew = then - Date.now();
}

const pad = (value: number): string => String(value).padStart(2, "0");

export function clock(at: number): string {
  const date = new Date(at);
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/** Format a duration in its two largest units: 7 s, 4 min 7 s, 1 h 4 min, 3 d 1 h */
export function duration(seconds: number): string {
  const total = Math.max(0, Math.floor(seconds));
  const [days, hours, minutes] = [Math.floor(total / 86400), Math.floor(total / 3600) % 24, Math.floor(total / 60) % 60];
  if (days > 0) return both(days, "d", hours, "h");
  if (hours > 0) return both(hours, "h", minutes, "min");
  return minutes > 0 ? both(minutes, "min", total % 60, "s") : `${total} s`;
}

function both(large: number, unit: string, small: number, smaller: string): string {
  return small > 0 ? `${large} ${unit} ${small} ${smaller}` : `${large} ${unit}`;
}

/** Format a duration in one rounded unit: 40 s, 3 min, 5 h, 2 d */
export function roughly(seconds: number): string {
  const total = Math.max(0, seconds);
  if (total < 60) return `${Math.floor(total)} s`;
  if (total < 3600) return `${Math.floor(total / 60)} min`;
  if (total < 172800) return `${Math.floor(total / 3600)} h`;
  return `${Math.floor(total / 86400)} d`;
}

export function relative(then: number, now: number): string {
  const seconds = (now - then) / 1000;
  if (seconds < -1) return `in ${roughly(-seconds)}`;
  return seconds < 5 ? "just now" : `${roughly(seconds)} ago`;
}

/** "3 min ago" with the absolute time in the title; ticks. */
export function ago(iso: string | null): HTMLElement {
  return timed(iso, "relative");
}

/** The time from `from` to `to`; ticks if `to` is unknown. */
export function elapsed(from: string | null, to: string | null = null): HTMLElement {
  if (from === null || to === null) return timed(from, "since");
  const seconds = (Date.parse(to) - Date.parse(from)) / 1000;
  return h("span", { class: "duration", title: `${absolute(from)} to ${absolute(to)}` }, duration(seconds));
}

/** The time since then in one unit: 3 min; ticks. */
export function lasting(iso: string): HTMLElement {
  return timed(iso, "roughly");
}

const WRITTEN = new RegExp(MOMENT);

/** A sentence of the server with its moments in local time: "not to start before 22:15". */
export function clocked(sentence: string): Child[] {
  return sentence.split(WRITTEN).map((part, at) => {
    const iso = part.replace(" UTC", "Z").replace(" ", "T");
    return at % 2 === 1 && Date.parse(iso) ? timed(iso, "clock") : part;
  });
}

/** The same as text, for a title. */
export function clockedText(sentence: string): string {
  return h("span", {}, ...clocked(sentence)).textContent;
}

type How = "relative" | "since" | "roughly" | "clock";

function timed(iso: string | null, mode: How): HTMLElement {
  if (iso === null || Number.isNaN(Date.parse(iso))) return h("span", { class: "na", title: "not yet" }, "–");
  const node = h("time", { datetime: iso, title: absolute(iso), "data-tick": mode, class: mode === "relative" ? "ago" : mode === "clock" ? "clock" : "duration" });
  refresh(node, serverNow());
  return node;
}

/** A full date and time: 22 Nov 2026, 13:22:37. */
export function absolute(at: string | number): string {
  return new Date(at).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

/** 13:22, with the day unless it is today: 23 Nov, 13:22; in another year 23 Nov 2031, 13:22. */
function moment(then: number, now: number): string {
  const [date, today] = [new Date(then), new Date(now)];
  const day = date.toDateString() === today.toDateString() ? {} : ({ day: "numeric", month: "short" } as const);
  const year = date.getFullYear() === today.getFullYear() ? {} : ({ year: "numeric" } as const);
  return date.toLocaleString("en-GB", { hour: "2-digit", minute: "2-digit", ...day, ...year });
}

function refresh(node: HTMLElement, now: number): void {
  const then = Date.parse(node.getAttribute("datetime") ?? "");
  if (Number.isNaN(then)) return;
  const seconds = (now - then) / 1000;
  const mode = node.dataset.tick as How;
  const text = mode === "since" ? duration(seconds) : mode === "roughly" ? roughly(seconds) : mode === "clock" ? moment(then, now) : relative(then, now);
  if (node.textContent !== text) node.textContent = text;
}

/** Update every ticking time of the page, including those rendered by the server. */
export function tick(root: ParentNode, now: number = serverNow()): void {
  for (const node of root.querySelectorAll<HTMLElement>("time[data-tick]")) refresh(node, now);
}

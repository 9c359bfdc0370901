// How results and failures of a tried request are written.
import { type Child, h } from "../../ui/dom";

/** `next` and `retryAfter`: the server's next step, and its header. */
export function failed(sentence: string, next = "", retryAfter: string | null = null): Child[] {
  const steps = [next, retryAfter === null ? "" : `Retry-After: ${retryAfter} s`].filter(Boolean).join(". ");
  return [h("p", { class: "note bad after", role: "alert" }, sentence, steps === "" ? null : h("span", { class: "next-step block" }, steps))];
}

/** JSON with a line for each member, but lists of plain values on one line: an embedding has hundreds. */
export function pretty(value: unknown, indent = ""): string {
  if (typeof value !== "object" || value === null) return JSON.stringify(value) ?? "null";
  const inner = `${indent}  `;
  const isPlain = (entry: unknown): boolean => typeof entry !== "object" || entry === null;
  const wrap = (open: string, lines: string[], close: string): string => (lines.length === 0 ? open + close : `${open}\n${inner}${lines.join(`,\n${inner}`)}\n${indent}${close}`);
  if (!Array.isArray(value)) return wrap("{", Object.entries(value).map(([key, entry]) => `${JSON.stringify(key)}: ${pretty(entry, inner)}`), "}");
  return value.every(isPlain) ? `[${value.map((entry) => JSON.stringify(entry)).join(", ")}]` : wrap("[", value.map((entry) => pretty(entry, inner)), "]");
}

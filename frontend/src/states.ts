// How states look and read: a shape, a colour by class, a word; the same everywhere on the page.
import { h } from "./dom";

const GLYPHS: Record<string, string> = {
  busy: "■", "held-idle": "◧", free: "□", hot: "▲", quarantined: "✕", dirty: "◆", unknown: "▨", unavailable: "▨",
  degraded: "✕", foreign: "◆", pending: "○", held: "‖", scheduled: "◔", running: "■", stopping: "◩",
  completed: "✓", failed: "✕", cancelled: "⊘", preempted: "↺", online: "■", joined: "○", lost: "▨",
  open: "□", ok: "□", red: "✕", amber: "▲", cordoned: "‖", draining: "◩", ended: "✓",
};

export function glyph(state: string): string {
  return GLYPHS[state.replaceAll("_", "-")] ?? "▨";
}

/** `word` replaces the state's own name where there is a better one. */
export function badge(state: string, word: string = state.replaceAll("_", " ")): HTMLElement {
  const name = state.replaceAll("_", "-");
  const isKnown = name in GLYPHS;
  return h("span", { class: `state state-${isKnown ? name : "unknown"}` }, h("i", { "aria-hidden": "true" }, glyph(name)), ` ${word}`);
}

const WAITS_FOR: Record<string, string> = {
  starting: "next", scheduler_behind: "next", reclaim_pending: "next",
  quota_wait: "quota", tenant_limit: "quota", budget: "quota", user_cap: "quota",
  capacity: "capacity", reserved: "capacity", fragmented: "capacity", maintenance: "capacity", health: "capacity", cpu_memory: "capacity",
  never_fits: "you", constraint: "you", not_before: "you", retry_backoff: "you", dependency: "you", max_parallel: "you",
  held_by_user: "held", held_by_admin: "held",
};

export const GROUPS = [
  ["next", "Starts next"],
  ["quota", "Waits on quota"],
  ["capacity", "Waits on capacity"],
  ["you", "Waits on you or on a time"],
  ["held", "Held"],
] as const;

export type Group = (typeof GROUPS)[number][0];

/** On what a waiting job waits, of five. */
export function waitGroup(state: string, code: string | undefined): Group {
  if (state === "held") return "held";
  if (state === "scheduled") return "next";
  return (WAITS_FOR[code ?? ""] ?? "capacity") as Group;
}

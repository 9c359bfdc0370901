// States: a symbol, a colour by class and a word, the same on all pages.
import { h } from "./dom";
import { SHAPES, WAIT_GROUPS, WAIT_GROUP_ELSE, WAIT_GROUP_OF } from "./constants";

export function glyph(state: string): string {
  return SHAPES[state.replaceAll("_", "-")] ?? "▨";
}

/** `word` replaces the name of the state. */
export function badge(state: string, word: string = state.replaceAll("_", " ")): HTMLElement {
  const name = state.replaceAll("_", "-");
  const isKnown = name in SHAPES;
  return h("span", { class: `state state-${isKnown ? name : "unknown"}` }, h("i", { "aria-hidden": "true" }, glyph(name)), ` ${word}`);
}

export type Group = (typeof WAIT_GROUPS)[number];

/** Headings in the queue. */
export const GROUP_WORDS: Readonly<Record<Group, string>> = {
  next: "Starts next",
  quota: "Waits on quota",
  capacity: "Waits on capacity",
  you: "Waits on you or on a time",
  held: "Held",
};

/** Return the wait group of a job. */
export function waitGroup(state: string, code: string | undefined): Group {
  if (state === "held") return "held";
  if (state === "scheduled") return "next";
  return WAIT_GROUP_OF[code ?? ""] ?? WAIT_GROUP_ELSE;
}

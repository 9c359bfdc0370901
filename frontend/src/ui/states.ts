// How states look and read: a shape, a colour by class, a word; the same everywhere on the page.
import { h } from "./dom";
import { SHAPES, WAIT_GROUPS, WAIT_GROUP_ELSE, WAIT_GROUP_OF } from "./constants";

export function glyph(state: string): string {
  return SHAPES[state.replaceAll("_", "-")] ?? "▨";
}

/** `word` replaces the state's own name where there is a better one. */
export function badge(state: string, word: string = state.replaceAll("_", " ")): HTMLElement {
  const name = state.replaceAll("_", "-");
  const isKnown = name in SHAPES;
  return h("span", { class: `state state-${isKnown ? name : "unknown"}` }, h("i", { "aria-hidden": "true" }, glyph(name)), ` ${word}`);
}

export type Group = (typeof WAIT_GROUPS)[number];

/** As the queue heads them. */
export const GROUP_WORDS: Readonly<Record<Group, string>> = {
  next: "Starts next",
  quota: "Waits on quota",
  capacity: "Waits on capacity",
  you: "Waits on you or on a time",
  held: "Held",
};

/** On what a waiting job waits, of five. */
export function waitGroup(state: string, code: string | undefined): Group {
  if (state === "held") return "held";
  if (state === "scheduled") return "next";
  return WAIT_GROUP_OF[code ?? ""] ?? WAIT_GROUP_ELSE;
}

// The controls of the log.
import { h } from "../../../ui/dom";
import type { LogRow } from "../../../live/topics";

export interface Controls {
  pre: HTMLPreElement;
  /** The name of an element of an array; empty for other jobs. */
  name: HTMLElement;
  stream: HTMLSelectElement;
  search: HTMLInputElement;
  follow: HTMLInputElement;
  wrap: HTMLInputElement;
  earlier: HTMLButtonElement;
  later: HTMLButtonElement;
  file: HTMLAnchorElement;
  further: HTMLButtonElement;
  note: HTMLElement;
}

export function controls(region: HTMLElement): Controls {
  const button = (words: string, classes = "small", attributes = {}): HTMLButtonElement => h("button", { type: "button", class: classes, ...attributes }, words);
  const all: Controls = {
    pre: h("pre", { class: "log", tabindex: 0, role: "region", "aria-label": "Output" }),
    name: h("span", { class: "id" }),
    stream: h("select", { "aria-label": "Attempt and rank", "data-log-stream": true }),
    search: h("input", { type: "search", placeholder: "Search", "aria-label": "Search the log", "data-log-search": true }),
    follow: h("input", { type: "checkbox", checked: true, "data-log-follow": true }),
    wrap: h("input", { type: "checkbox", checked: true }),
    earlier: button("Load earlier", "small push"),
    later: button("Load later"),
    file: h("a", { class: "button small", download: true, hidden: true }, "Download"),
    further: button("Show more matches", "small", { hidden: true }),
    note: h("p", { class: "log-note muted small", role: "status" }),
  };
  const bar = h("div", { class: "card-head toolbar" }, all.name, all.stream, all.search, h("label", {}, all.follow, " follow"), h("label", {}, all.wrap, " wrap"), all.earlier, all.later, all.file);
  region.append(bar, all.pre, all.note, all.further);
  return all;
}

export const keyOf = (row: LogRow): string => `${row.attempt}.${row.rank}`;

/** One option for each rank of each attempt. */
export function fill(select: HTMLSelectElement, rows: readonly LogRow[]): void {
  const values = rows.map(keyOf).join();
  if ([...select.options].map((option) => option.value).join() === values && rows.length > 0) return;
  const options = rows.map((row) => h("option", { value: keyOf(row) }, `attempt ${row.attempt} · rank ${row.rank}`));
  select.replaceChildren(...(options.length > 0 ? options : [h("option", { value: "" }, "no attempt yet")]));
}

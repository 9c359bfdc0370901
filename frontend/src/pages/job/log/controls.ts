// The controls of the log: those of the server's template, or new ones.
import { h } from "../../../ui/dom";
import type { LogRow } from "../../../live/topics";

export interface Controls {
  pre: HTMLPreElement;
  stream: HTMLSelectElement;
  search: HTMLInputElement;
  follow: HTMLInputElement;
  wrap: HTMLInputElement | null;
  earlier: HTMLButtonElement;
  later: HTMLButtonElement;
  further: HTMLButtonElement;
  note: HTMLElement;
}

export function controls(region: HTMLElement): Controls {
  const find = <E extends HTMLElement>(selector: string): E | null => region.querySelector<E>(selector);
  const button = (words: string, attributes = {}): HTMLButtonElement => h("button", { type: "button", class: "small", ...attributes }, words);
  const pre = find<HTMLPreElement>("pre.log") ?? h("pre", { class: "log", tabindex: 0 });
  const stream = find<HTMLSelectElement>("[data-log-stream], select") ?? h("select", { "aria-label": "Attempt and rank" });
  const search = find<HTMLInputElement>("[data-log-search]") ?? h("input", { type: "search", placeholder: "Search", "aria-label": "Search the log" });
  const follow = find<HTMLInputElement>("[data-log-follow]") ?? h("input", { type: "checkbox", checked: true });
  const earlier = find<HTMLButtonElement>("[data-log-earlier]") ?? button("Load earlier");
  const later = find<HTMLButtonElement>("[data-log-later]") ?? button("Load later");
  const bar = h("div", { class: "toolbar" });
  for (const control of [stream, search, follow, earlier, later]) {
    if (!control.isConnected) bar.append(control === follow ? h("label", {}, follow, " follow") : control);
  }
  if (bar.childElementCount > 0) region.prepend(bar);
  if (!pre.isConnected) region.append(pre);
  const note = h("p", { class: "log-note muted small", role: "status" });
  const further = button("Show more matches", { hidden: true });
  pre.after(note, further);
  return { pre, stream, search, follow, wrap: find<HTMLInputElement>("[data-log-wrap]"), earlier, later, further, note };
}

export const keyOf = (row: LogRow): string => `${row.attempt}.${row.rank}`;

/** One option for each rank of each attempt. */
export function fill(select: HTMLSelectElement, rows: readonly LogRow[]): void {
  const values = rows.map(keyOf).join();
  if ([...select.options].map((option) => option.value).join() === values && rows.length > 0) return;
  const options = rows.map((row) => h("option", { value: keyOf(row) }, `attempt ${row.attempt} · rank ${row.rank}`));
  select.replaceChildren(...(options.length > 0 ? options : [h("option", { value: "" }, "no attempt yet")]));
}

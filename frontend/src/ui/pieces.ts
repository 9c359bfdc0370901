// Pieces that several views show: links, requests, reasons, bars, strips, empty states.
import { type Child, h, na, plural } from "./dom";
import { CELLS } from "./constants";
import { badge, glyph } from "./states";
import type { TopicState } from "../live/store";
import type { Cell, JobRow, Reason, TenantRow } from "../live/topics";

export const byName = new Intl.Collator(undefined, { numeric: true }).compare;

/** As frontend/pages/notices/activity.py. */
const MAX_OF_NAME = 60;

export const jobHref = (id: number): string => `/jobs/${id}/`;
export const nodeHref = (name: string): string => `/nodes/${encodeURIComponent(name)}/`;
export const tenantHref = (name: string): string => `/tenants/${encodeURIComponent(name)}/`;

export function jobLink(id: number, name = ""): HTMLElement {
  return h("a", { href: jobHref(id), class: name === "" ? "id" : null, title: name === "" ? null : name }, name === "" ? id : shortened(name));
}

/** Shorten a name for a sentence. */
function shortened(name: string): string {
  const letters = [...name];
  return letters.length <= MAX_OF_NAME ? name : `${letters.slice(0, MAX_OF_NAME - 1).join("")}…`;
}

/** A user-given name, shortened in lists. Null if empty: a phone hides an empty cell. */
export const named = (name: string): HTMLElement | null => name === "" ? null : h("span", { class: "named", title: name }, name);

export function nodeLink(name: string): HTMLElement {
  return h("a", { href: nodeHref(name), class: "node", title: name }, name);
}

export function tenantLink(name: string): HTMLElement {
  return h("a", { href: tenantHref(name), class: "tenant", title: name }, name);
}

/** Links to at most three nodes; the rest is counted. */
export function nodeLinks(names: readonly string[] | null): Child[] {
  if (names === null || names.length === 0) return [h("span", { class: "na", title: "not placed" }, "–")];
  const links = names.slice(0, 3).flatMap((name, at) => [at > 0 ? ", " : null, nodeLink(name)]);
  return names.length > 3 ? [...links, ` and ${names.length - 3} more`] : links;
}

/** Format MiB: 512 MiB, 80 GiB. */
export function mib(size: number | null): string {
  if (size === null) return "n/a";
  const short = (value: number): string => String(Number(value.toPrecision(4)));
  return size < 1024 ? `${Math.round(size)} MiB` : size < 1 << 20 ? `${short(size / 1024)} GiB` : `${short(size / 2 ** 20)} TiB`;
}

/** Return the short name of a GPU model. */
export function shortModel(name: string): string {
  return name.replace(/^NVIDIA /, "").replace("GeForce ", "");
}

/** Format a request: 4 GPUs H100 ≥ 80 GiB; for waiting array elements: 90 × 4 GPUs. */
export function request(job: { gpu_count: number; gpu_model?: string | null; gpu_memory_mb?: number | null; elements?: number | null }): string {
  const times = job.elements ? `${job.elements.toLocaleString("en")} × ` : "";
  if (job.gpu_count === 0) return `${times}CPU only`;
  const model = job.gpu_model ? ` ${job.gpu_model.split("|").map(shortModel).join(" or ")}` : "";
  return `${times}${plural(job.gpu_count, "GPU")}${model}${job.gpu_memory_mb ? ` ≥ ${mib(job.gpu_memory_mb)}` : ""}`;
}

/** Badges with the number of array elements by state. */
export function elementCounts({ array }: Pick<JobRow, "array">): Child[] {
  if (!array) return [];
  return Object.entries(array.by_state).flatMap(([name, count]) => [" ", h("span", { title: `${count} of ${plural(array.count, "element")}: ${name}` }, badge(name, count.toLocaleString("en")))]);
}

export function reasonOf(job: Pick<JobRow, "reason">): { sentence: string; next: string; code: string } {
  const { reason } = job;
  if (reason === null || reason === undefined) return { sentence: "", next: "", code: "" };
  if (typeof reason === "string") return { sentence: reason, next: "", code: "" };
  return { sentence: reason.sentence, next: (reason as Reason).next_step ?? "", code: reason.code };
}

/** A number that links to the counted items. */
export function count(href: string, value: Child, word: string, kind = "", title: string | null = null): HTMLElement {
  const mark = kind === "" ? null : h("i", { "aria-hidden": "true" }, glyph(kind));
  return h("a", { class: kind === "" ? "count" : `count count-${kind}`, href, title }, h("b", {}, value), h("span", {}, mark, mark && " ", word));
}

export { CELLS };

export const CELL_CLASS: Record<Cell, string> = {
  busy: "cell-busy",
  held_idle: "cell-held-idle",
  free: "cell-free",
  unavailable: "cell-unavailable",
};

export const CELL_WORDS: Record<Cell, string> = {
  busy: "busy",
  held_idle: "held but idle",
  free: "free",
  unavailable: "unavailable",
};

/** Used, guaranteed and limit of one tenant on one line. */
export function bullet(tenant: TenantRow, scale: number): HTMLElement {
  const at = (value: number): string => `${((100 * Math.min(value, scale)) / Math.max(scale, 1)).toFixed(2)}%`;
  const { gpus_held: used, guaranteed_gpus: guaranteed, max_gpus: limit } = tenant;
  const words = [`${used} used`, guaranteed === null ? "no guarantee" : `${guaranteed} guaranteed`, limit === null ? "no limit" : `${limit} at most`];
  const borrowed = guaranteed === null ? 0 : Math.max(0, used - guaranteed);
  return h(
    "div",
    { class: "bar", role: "img", "aria-label": words.join(", "), title: words.join(" · ") },
    h("span", { class: "bar-used", style: `width: ${at(used - borrowed)}` }),
    borrowed > 0 && h("span", { class: "bar-borrowed", style: `left: ${at(used - borrowed)}; width: ${at(borrowed)}` }),
    !!guaranteed && h("span", { class: "bar-mark bar-guaranteed", style: `left: ${at(guaranteed)}` }),
    limit !== null && h("span", { class: "bar-mark bar-limit", style: `left: ${at(limit)}` }),
  );
}

export function barScale(tenants: readonly TenantRow[]): number {
  return Math.max(1, ...tenants.map((t) => Math.max(t.gpus_held, t.guaranteed_gpus ?? 0, t.max_gpus ?? 0)));
}

export function orUnknown(value: string | number | null | undefined, reason: string): Child {
  return value === null || value === undefined || value === "" ? na(reason) : value;
}

export function empty(...words: Child[]): HTMLElement {
  return h("p", { class: "empty" }, ...words);
}

/** Return the first rows, or all if only one would be left out, as its line replaces the count. */
export function upTo<R>(limit: number, rows: readonly R[]): readonly R[] {
  return rows.length <= limit + 1 ? rows : rows.slice(0, limit);
}

/** The last line of a shortened list. */
export function moreItem(count: number, label: string, href: string): HTMLElement | null {
  return count > 0 ? h("li", { class: "rest" }, h("a", { href }, `${count} ${label}`)) : null;
}

/** Return a function that copies the empty state of a region from its template. */
export function whenEmpty(region: HTMLElement): () => Node {
  const template = region.querySelector<HTMLTemplateElement>(":scope > template");
  return () => template?.content.cloneNode(true) ?? empty();
}

/** Set the row's id to its name, for #name links, unless another element has it. */
export function nameRow(tr: HTMLElement, name: string, region: HTMLElement): void {
  const owner = document.getElementById(name);
  if (owner === null || region.contains(owner)) tr.id = name;
}

/** Return the rows whose keys have this prefix. */
export function under<R>(state: TopicState, prefix: string): [string, R][] {
  return [...state.rows].filter(([key]) => key.startsWith(prefix)).map(([key, row]) => [key, row as R]);
}

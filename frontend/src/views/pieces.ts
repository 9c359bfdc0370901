// Pieces that several views show: links, requests, reasons, bars, strips, empty states.
import { type Child, h, na, plural } from "../dom";
import type { TopicState } from "../store";
import type { Cell, JobRow, Reason, TenantRow } from "../topics";

export const jobHref = (id: number): string => `/jobs/${id}/`;
export const nodeHref = (name: string): string => `/nodes/#${encodeURIComponent(name)}`;
export const tenantHref = (name: string): string => `/tenants/#${encodeURIComponent(name)}`;

export function jobLink(id: number, name = ""): HTMLElement {
  return h("a", { href: jobHref(id), class: "job" }, h("span", { class: "id" }, `#${id}`), name === "" ? null : ` ${name}`);
}

export function nodeLink(name: string): HTMLElement {
  return h("a", { href: nodeHref(name), class: "node" }, name);
}

export function tenantLink(name: string): HTMLElement {
  return h("a", { href: tenantHref(name), class: "tenant" }, name);
}

/** Nodes between commas; more than three are counted. */
export function nodeLinks(names: readonly string[] | null): Child[] {
  if (names === null || names.length === 0) return [h("span", { class: "na", title: "not placed" }, "–")];
  const shown = names.slice(0, 3).flatMap((name, at) => [at > 0 ? ", " : null, nodeLink(name)]);
  return names.length > 3 ? [...shown, ` and ${names.length - 3} more`] : shown;
}

export function gigabytes(mb: number | null): string {
  if (mb === null) return "n/a";
  return mb >= 1024 ? `${Math.round(mb / 1024)} GB` : `${mb} MB`;
}

/** What a job asks for: 4 × H100, 80 GB each. */
export function request(job: { gpu_count: number; gpu_model?: string | null; gpu_memory_mb?: number | null }): string {
  if (job.gpu_count === 0) return "no GPU";
  const memory = job.gpu_memory_mb ? `, ${gigabytes(job.gpu_memory_mb)} each` : "";
  return `${job.gpu_count} × ${job.gpu_model ? job.gpu_model.replaceAll("|", " or ") : "GPU"}${memory}`;
}

export function reasonOf(job: Pick<JobRow, "reason">): { sentence: string; next: string; code: string } {
  const { reason } = job;
  if (reason === null || reason === undefined) return { sentence: "", next: "", code: "" };
  if (typeof reason === "string") return { sentence: reason, next: "", code: "" };
  return { sentence: reason.sentence, next: (reason as Reason).next_step ?? "", code: reason.code };
}

export function reasonCell(job: Pick<JobRow, "reason">): Child[] {
  const { sentence, next } = reasonOf(job);
  return [sentence === "" ? null : h("span", { class: "reason" }, sentence), next === "" ? null : h("small", { class: "next-step" }, next)];
}

export function count(href: string, value: number, word: string, kind = ""): HTMLElement {
  return h("a", { class: `count ${kind === "" ? "" : `count-${kind}`}`.trim(), href }, h("b", {}, value), " ", h("span", {}, word));
}

export const CELL_CLASS: Record<Cell, string> = {
  busy: "cell-busy",
  held_idle: "cell-held-idle",
  free: "cell-free",
  unavailable: "cell-unavailable",
};

export const CELL_WORDS: Record<Cell, string> = {
  busy: "busy",
  held_idle: "held idle",
  free: "free",
  unavailable: "unavailable",
};

const MOST_CELLS = 400;

/** One cell per device; past 400, segments whose widths are the exact shares. */
export function strip(counts: readonly (readonly [Cell, number])[]): HTMLElement {
  const total = counts.reduce((sum, [, n]) => sum + n, 0);
  const label = counts.map(([cell, n]) => `${n} ${CELL_WORDS[cell]}`).join(", ");
  const box = h("div", { class: "strip", role: "img", "aria-label": `${plural(total, "GPU")}: ${label}` });
  for (const [cell, n] of counts) {
    const title = `${n} ${CELL_WORDS[cell]}`;
    if (total > MOST_CELLS) {
      if (n > 0) box.append(h("span", { class: `segment ${CELL_CLASS[cell]}`, title, style: `flex: ${n} 1 0; min-width: 2px` }));
      continue;
    }
    for (let at = 0; at < n; at += 1) box.append(h("span", { class: `cell ${CELL_CLASS[cell]}`, title }));
  }
  return box;
}

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
    guaranteed !== null && h("span", { class: "bar-mark bar-guaranteed", style: `left: ${at(guaranteed)}` }),
    limit !== null && h("span", { class: "bar-mark bar-limit", style: `left: ${at(limit)}` }),
  );
}

export function barScale(tenants: readonly TenantRow[]): number {
  return Math.max(1, ...tenants.map((t) => Math.max(t.gpus_held, t.guaranteed_gpus ?? 0, t.max_gpus ?? 0)));
}

export function orNone(value: number | null, none: string): Child {
  return value === null ? h("span", { class: "na", title: `no ${none} is set` }, "none") : value;
}

export function orUnknown(value: string | number | null | undefined, why: string): Child {
  return value === null || value === undefined || value === "" ? na(why) : value;
}

export function empty(...words: Child[]): HTMLElement {
  return h("p", { class: "empty" }, ...words);
}

export function noJobs(): HTMLElement {
  return empty("No jobs. Submit the first one: ", h("code", { class: "copy" }, "gpusched submit -- python train.py"));
}

export function noNodes(): HTMLElement {
  return empty("No nodes yet. ", h("a", { href: "/nodes/#join" }, "Join a node"), " with one command; it appears here by itself.");
}

/** The rows of a topic whose keys begin so, in the order of their keys. */
export function under<R>(state: TopicState, prefix: string): [string, R][] {
  return [...state.rows].filter(([key]) => key.startsWith(prefix)).map(([key, row]) => [key, row as R]);
}

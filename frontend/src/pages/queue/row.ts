// The elements of a queue line: a job row of fixed height, a heading or a placeholder.
import { type Child, h, na, plural } from "../../ui/dom";
import { sortButton } from "../../ui/sorting";
import { GROUP_WORDS } from "../../ui/states";
import { clocked, clockedText, elapsed, roughly, serverNow } from "../../ui/time";
import type { QueueRow } from "../../live/topics";
import { jobHref, jobLink, reasonOf, request, tenantLink } from "../../ui/pieces";
import type { Group } from "./geometry";

/** As in GET /api/v1/queue. */
export interface Estimate {
  p50_at: string | null;
  p90_at: string | null;
  later_than: string | null;
  sentence: string;
}

/** The estimate of a waiting job, or why there is none. */
export interface EstimateResult {
  estimate: Estimate | null;
  estimate_reason: string | null;
}

interface Column {
  label: string;
  sort?: string;
  isDownFirst?: boolean;
  className?: string;
  cell(row: QueueRow, estimateCell: EstimateResult | undefined): Child | Child[];
}

export const COLUMNS: readonly Column[] = [
  { label: "Place", className: "num", cell: (row) => row.position ?? "–" },
  { label: "Id", sort: "id", isDownFirst: true, cell: (row) => jobLink(row.id) },
  { label: "Name", sort: "name", className: "name", cell: (row) => h("span", { title: row.name }, row.name) },
  { label: "Owner", cell: (row) => h("span", { title: row.user }, row.user) },
  { label: "Tenant", cell: (row) => tenantLink(row.tenant) },
  { label: "Request", sort: "gpus", isDownFirst: true, cell: (row) => h("span", { title: request(row) }, request(row).replace(/(?<=GPUs?) /, "\n")) },
  { label: "Why it waits", className: "why", cell: (row) => reasonCell(row) },
  { label: "Estimate", className: "nowrap", cell: (_, known) => estimateCell(known) },
  { label: "Priority", sort: "priority", isDownFirst: true, className: "num", cell: (row) => row.priority ?? "–" },
  { label: "Waiting for", sort: "submitted", className: "nowrap", cell: (row) => elapsed(row.submitted_at) },
];

export function headCell({ label, sort, isDownFirst, className }: Column): HTMLElement {
  return h("th", { scope: "col", class: className }, sort === undefined ? label : sortButton(label, sort, isDownFirst));
}

function reasonCell(row: QueueRow): Child {
  const { sentence, next } = reasonOf(row);
  return h("span", { class: "reason", title: clockedText(next === "" ? sentence : `${sentence}. Next: ${next}`) }, ...clocked(sentence));
}

/** The median estimated start, with the full sentence as title; undefined: not yet requested. */
export function estimateCell(result: EstimateResult | undefined, now: number = serverNow()): HTMLElement {
  if (result === undefined) return h("span", { class: "muted", title: "computing" }, "–");
  const { estimate } = result;
  if (estimate === null) return na(result.estimate_reason ?? "no estimate");
  const at = estimate.p50_at ?? estimate.p90_at;
  const words = at !== null ? `in ${roughly(Math.max(0, Date.parse(at) - now) / 1000)}` : estimate.later_than !== null ? "later" : "none";
  return h("span", { title: clockedText(estimate.sentence) }, words);
}

/** `toggle` opens and closes the details. */
export function jobRow(row: QueueRow, estimate: EstimateResult | undefined, isOpen: boolean, toggle: () => void): HTMLTableRowElement {
  const button = h("button", { type: "button", class: "opener", "aria-expanded": isOpen ? "true" : "false", "aria-label": `More about job ${row.id}` }, isOpen ? "▾" : "▸");
  button.addEventListener("click", toggle);
  const cells = COLUMNS.map((column, at) => {
    const content = [column.cell(row, estimate)].flat();
    return h("td", { "data-label": column.label, class: column.className }, ...(at === 0 ? [button] : []), ...content);
  });
  return h("tr", { "data-key": row.id, "data-href": jobHref(row.id), "data-state": row.state, tabindex: -1 }, ...cells);
}

export function headingRow(group: Group): HTMLTableRowElement {
  const title = GROUP_WORDS[group.group as keyof typeof GROUP_WORDS] ?? group.group;
  const words = `${title} · ${plural(group.jobs, "job")}, ${plural(group.gpus, "GPU")}`;
  return h("tr", { class: "group", "data-key": `group:${group.group}` }, h("th", { colspan: COLUMNS.length, scope: "rowgroup" }, words));
}

/** A placeholder for a row that is not loaded yet. */
export function blankRow(key: string): HTMLTableRowElement {
  return h("tr", { class: "blank-row", "data-key": key, "aria-hidden": "true" }, h("td", { colspan: COLUMNS.length }, h("span", { class: "skeleton" })));
}

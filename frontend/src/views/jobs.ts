// The tables of jobs: the queue in its groups, and the latest jobs.
import { h, plural, refill } from "../dom";
import type { MakeView } from "../regions";
import { type Column, type Line, LiveTable } from "../rows";
import { GROUPS, type Group, badge, waitGroup } from "../states";
import { ago, elapsed } from "../time";
import type { JobRow, QueueRow, QueueTotal } from "../topics";
import { empty, jobHref, jobLink, noJobs, nodeLinks, reasonCell, reasonOf, request, tenantLink, whenEmpty } from "./pieces";

type Common = Pick<QueueRow & JobRow, "id" | "name" | "tenant" | "user" | "state">;

const id: Column<Common> = { label: "Id", cell: (row) => jobLink(row.id) };
const name: Column<Common> = { label: "Name", cell: (row) => row.name, className: "name" };
const owner: Column<Common> = { label: "Owner", cell: (row) => row.user };
const tenant: Column<Common> = { label: "Tenant", cell: (row) => tenantLink(row.tenant) };

/** Only what the page's address asks for: ?state=running, ?tenant=, ?user=, ?reason=. */
function wanted(row: Common, code: string): boolean {
  const asked = new URLSearchParams(location.search);
  const has = (field: string, value: string): boolean => {
    const list = asked.get(field);
    return list === null || list === "" || list.split(",").includes(value);
  };
  return has("state", row.state) && has("tenant", row.tenant) && has("user", row.user) && has("reason", code);
}

function mark(tr: HTMLTableRowElement, row: Common): void {
  tr.dataset.href = jobHref(row.id);
  tr.dataset.state = row.state;
}

function noneLikeThis(): HTMLElement {
  return empty("None of them is like this. ", h("a", { href: location.pathname }, "Show all"), ".");
}

export const queue: MakeView = (region) => {
  const none = whenEmpty(region, () => empty("No job waits. ", ...noJobs().childNodes));
  const summary = h("p", { class: "empty" });
  const table = new LiveTable<QueueRow>(
    [
      { label: "Place", cell: (row) => row.position ?? "–", className: "num" },
      id,
      name,
      owner,
      tenant,
      { label: "Request", cell: (row) => h("span", { class: "nowrap" }, request(row)) },
      { label: "Why it waits", cell: reasonCell },
      { label: "Priority", cell: (row) => row.priority ?? "–", className: "num" },
      { label: "Waiting for", cell: (row) => elapsed(row.submitted_at), className: "nowrap" },
    ],
    mark,
  );
  return {
    draw(state) {
      const total = state.rows.get("total") as QueueTotal | undefined;
      const rows = [...state.rows].filter(([key]) => key !== "total").map(([, row]) => row as QueueRow);
      const all = total?.jobs ?? rows.length;
      summary.textContent = all > rows.length ? `${rows.length} shown of ${plural(all, "waiting job")} (${plural(total?.gpus ?? 0, "GPU")}) of all tenants.` : "";
      summary.hidden = summary.textContent === "";
      if (rows.length === 0) return refill(region, none(), summary.cloneNode(true));
      const shown = rows.filter((row) => wanted(row, row.reason?.code ?? ""));
      if (shown.length === 0) return refill(region, noneLikeThis());
      table.update(grouped(shown));
      if (table.element.parentElement !== region) region.replaceChildren(table.element, summary);
    },
  };
};

/** By group in a fixed order, within it by place in the queue; headings count. */
export function grouped(rows: readonly QueueRow[]): Line<QueueRow>[] {
  const by = new Map<Group, QueueRow[]>();
  for (const row of rows) {
    const group = waitGroup(row.state, row.reason?.code);
    const known = by.get(group);
    if (known === undefined) by.set(group, [row]);
    else known.push(row);
  }
  const lines: Line<QueueRow>[] = [];
  for (const [group, title] of GROUPS) {
    const members = by.get(group) ?? [];
    if (members.length === 0) continue;
    members.sort((a, b) => (a.position ?? Infinity) - (b.position ?? Infinity) || a.id - b.id);
    const gpus = members.reduce((sum, row) => sum + row.gpu_count, 0);
    lines.push({ key: `group:${group}`, heading: `${title} · ${plural(members.length, "job")}, ${plural(gpus, "GPU")}` });
    lines.push(...members.map((row) => ({ key: String(row.id), row })));
  }
  return lines;
}

export const jobs: MakeView = (region) => {
  const none = whenEmpty(region, noJobs);
  const table = new LiveTable<JobRow>(
    [
      id,
      name,
      { label: "State", cell: (row) => badge(row.state) },
      owner,
      tenant,
      { label: "GPUs", cell: (row) => row.gpu_count, className: "num" },
      { label: "Nodes", cell: (row) => nodeLinks(row.nodes) },
      { label: "Why", cell: (row) => h("span", { class: "reason" }, reasonOf(row).sentence) },
      { label: "Submitted", cell: (row) => ago(row.submitted_at), className: "nowrap" },
      { label: "Ran", cell: (row) => row.started_at !== null && elapsed(row.started_at, row.ended_at), className: "nowrap" },
    ],
    mark,
  );
  return {
    draw(state) {
      const all = [...state.rows.values()] as JobRow[];
      if (all.length === 0) return refill(region, none());
      const rows = all.filter((row) => wanted(row, reasonOf(row).code)).sort((a, b) => b.id - a.id);
      if (rows.length === 0) return refill(region, noneLikeThis());
      table.update(rows.map((row) => ({ key: String(row.id), row })));
      if (table.element.parentElement !== region) region.replaceChildren(table.element);
    },
  };
};

// The tables of jobs: the queue in its groups, and the latest jobs.
import { type Child, h, plural, refill } from "../dom";
import type { MakeView } from "../regions";
import { type Column, type Line, LiveTable } from "../rows";
import { GROUPS, type Group, badge, waitGroup } from "../states";
import { ago, elapsed } from "../time";
import type { JobRow, QueueRow, QueueTotal } from "../topics";
import { empty, jobHref, jobLink, noJobs, nodeLinks, reasonCell, reasonOf, request, tenantLink } from "./pieces";

type Common = Pick<QueueRow & JobRow, "id" | "name" | "tenant" | "user" | "state">;

const job: Column<Common> = { label: "Job", cell: (row) => jobLink(row.id, row.name), className: "name" };
const owner: Column<Common> = { label: "Owner", cell: (row) => [row.user, h("small", {}, " ", tenantLink(row.tenant))] };

/** Only what the page's address asks for: ?state=running, ?tenant=, ?user=, ?reason=. */
function wanted(row: Common, code: string): boolean {
  const asked = new URLSearchParams(location.search);
  const has = (name: string, value: string): boolean => {
    const list = asked.get(name);
    return list === null || list === "" || list.split(",").includes(value);
  };
  return has("state", row.state) && has("tenant", row.tenant) && has("user", row.user) && has("reason", code);
}

function mark(tr: HTMLTableRowElement, row: Common): void {
  tr.dataset.href = jobHref(row.id);
  tr.dataset.state = row.state;
}

export const queue: MakeView = (region) => {
  const summary = h("p", { class: "summary" });
  const table = new LiveTable<QueueRow>(
    [
      { label: "#", cell: (row) => row.position ?? "–", className: "num" },
      job,
      owner,
      { label: "Asks for", cell: request },
      { label: "Waits for", cell: (row) => badge(row.state, row.reason?.code.replaceAll("_", " ") ?? row.state) },
      { label: "Why", cell: reasonCell, className: "wide" },
      { label: "Waited", cell: (row) => elapsed(row.submitted_at), className: "num" },
      { label: "Priority", cell: (row) => row.priority ?? "–", className: "num" },
    ],
    mark,
  );
  return {
    draw(state) {
      const total = state.rows.get("total") as QueueTotal | undefined;
      const rows = [...state.rows].filter(([key]) => key !== "total").map(([, row]) => row as QueueRow);
      if (rows.length === 0) return refill(region, empty("Nobody waits."), noJobs());
      const shown = rows.filter((row) => wanted(row, row.reason?.code ?? ""));
      table.update(grouped(shown));
      const more = total !== undefined && total.jobs > total.shown ? `, the first ${total.shown} shown` : "";
      const count = shown.length < rows.length ? `${shown.length} of ` : "";
      summary.textContent = `${count}${plural(total?.jobs ?? rows.length, "job")} ask for ${plural(total?.gpus ?? 0, "GPU")}${more}.`;
      if (table.element.parentElement !== region) region.replaceChildren(summary, table.element);
    },
  };
};

/** By group in a fixed order, within it by place in the queue; headings count. */
export function grouped(rows: readonly QueueRow[]): Line<QueueRow>[] {
  const by = new Map<Group, QueueRow[]>();
  for (const row of rows) {
    const group = waitGroup(row.state, row.reason?.code);
    by.set(group, [...(by.get(group) ?? []), row]);
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

function when(row: JobRow): Child {
  if (row.ended_at !== null) return ago(row.ended_at);
  return row.started_at !== null ? elapsed(row.started_at) : ago(row.submitted_at);
}

export const jobs: MakeView = (region) => {
  const table = new LiveTable<JobRow>(
    [
      job,
      { label: "State", cell: (row) => badge(row.state) },
      owner,
      { label: "GPUs", cell: (row) => row.gpu_count, className: "num" },
      { label: "Nodes", cell: (row) => nodeLinks(row.nodes) },
      { label: "Why", cell: (row) => h("span", { class: "reason" }, reasonOf(row).sentence), className: "wide" },
      { label: "Ran", cell: (row) => elapsed(row.started_at, row.ended_at), className: "num" },
      { label: "When", cell: when },
      { label: "Exit", cell: (row) => row.exit_code ?? "–", className: "num" },
    ],
    mark,
  );
  return {
    draw(state) {
      const all = [...state.rows.values()] as JobRow[];
      if (all.length === 0) return refill(region, noJobs());
      const rows = all.filter((row) => wanted(row, reasonOf(row).code)).sort((a, b) => b.id - a.id);
      if (rows.length === 0) return refill(region, empty("None of the latest jobs is like this. ", h("a", { href: location.pathname }, "Show all")));
      table.update(rows.map((row) => ({ key: String(row.id), row })));
      if (table.element.parentElement !== region) region.replaceChildren(table.element);
    },
  };
};

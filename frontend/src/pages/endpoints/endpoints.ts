// The views of the Endpoints pages: the list, and the load, batches, replicas and costs of one endpoint.
import type { MakeView } from "../../live/regions";
import type { TopicState } from "../../live/store";
import { type Child, h, na, plural, refill } from "../../ui/dom";
import { byName, empty, jobLink, named, tenantLink, under, whenEmpty } from "../../ui/pieces";
import { type Column, LiveTable } from "../../ui/rows";
import { badge } from "../../ui/states";
import { ago, lasting } from "../../ui/time";
import { type BatchRow, type CostRow, type EndpointRow, REASONS, type ReplicaRow, amount, endpointHref, latency } from "./rows";
import { startTrying } from "./try";

const NO_REQUEST = "no request was completed lately";

const latencyOf = (seconds: number | null): Child => (seconds === null ? na(NO_REQUEST) : latency(seconds));

function status(row: EndpointRow): Child[] {
  const problem = row.problem === "" ? null : h("small", { class: "next-step" }, row.problem);
  return [row.problem === "" ? badge(row.state) : badge("amber", "replicas fail"), problem];
}

/** A problem with a link to the job that it begins with: "job 7, its latest replica, ended before it accepted requests". */
function linked(problem: string): Child[] {
  const [, id = "", rest = ""] = /^job (\d+)(.*)$/s.exec(problem) ?? [];
  return id === "" ? [problem] : [jobLink(Number(id), `job ${id}`), rest];
}

/** The number of replicas: "2 warm, 1 cold". */
function replicaCounts({ replicas: all, warm }: EndpointRow): string {
  if (all === 0) return "none";
  return [warm > 0 && `${warm} warm`, all > warm && `${all - warm} cold`].filter(Boolean).join(", ");
}

function costUsers(row: EndpointRow): Child {
  if (row.costs.length === 0) return null;
  const words = row.costs.map(([user, cost]) => `${user} ${amount(cost)}`);
  const rest = row.cost_users - row.costs.length;
  const text = [...words, ...(rest > 0 ? [`${rest} more`] : [])].join(", ");
  return h("small", { class: "named", title: text }, text);
}

const COLUMNS: readonly Column<EndpointRow>[] = [
  { label: "Endpoint", cell: (row) => h("a", { href: endpointHref(row), class: "named", title: row.name }, row.name), className: "name" },
  { label: "Tenant", cell: (row) => tenantLink(row.tenant) },
  { label: "State", cell: status, className: "why" },
  { label: "Waiting", cell: (row) => [amount(row.queued), h("small", {}, ` of ${amount(row.max_queue)}`)], className: "num" },
  { label: "Oldest", cell: (row) => (row.oldest_at === null ? null : lasting(row.oldest_at)), className: "num" },
  { label: "In progress", cell: (row) => amount(row.running), className: "num" },
  { label: "Replicas", cell: (row) => [replicaCounts(row), h("small", {}, ` of ${row.max_replicas}`)], className: "nums" },
  { label: "p50", cell: (row) => latencyOf(row.p50_seconds), className: "num" },
  { label: "p95", cell: (row) => latencyOf(row.p95_seconds), className: "num" },
  { label: "p99", cell: (row) => latencyOf(row.p99_seconds), className: "num" },
  { label: "Cost, 24 h", cell: (row) => [amount(row.cost), costUsers(row)], className: "cost" },
];

export const list: MakeView = (region) => {
  const none = whenEmpty(region);
  const table = new LiveTable<EndpointRow>(COLUMNS, (tr, row) => (tr.dataset.href = endpointHref(row)), "rows endpoints");
  let isEmpty = true;
  region.append(none());
  return {
    draw(state) {
      const rows = [...state.rows] as [string, EndpointRow][];
      rows.sort(([, a], [, b]) => byName(a.tenant, b.tenant) || byName(a.name, b.name));
      if (rows.length === 0) {
        if (!isEmpty) region.replaceChildren(none());
      } else {
        if (isEmpty) region.replaceChildren(table.element);
        table.update(rows.map(([key, row]) => ({ key, row })));
      }
      isEmpty = rows.length === 0;
    },
  };
};

const endpointOf = (state: TopicState): EndpointRow | undefined => state.rows.get("endpoint") as EndpointRow | undefined;

const figure = (value: Child, label: string, more: Child = null): HTMLElement => h("span", { class: "count" }, h("b", {}, value, more), h("span", {}, label));

/** How the requests of the window ended, unless all were completed. */
function endings(row: EndpointRow): string {
  const others = (["failed", "expired", "cancelled", "refused"] as const).filter((state) => row[state] > 0);
  return [`${amount(row.completed)} completed`, ...others.map((state) => `${amount(row[state])} ${state}`)].join(", ");
}

const percent = (chance: number): string => `${Math.round(100 * chance)} %`;

/** What pre-warming does now, and why. */
function prewarmingNow(row: EndpointRow): string {
  if (row.is_over_budget) return "Pre-warming is off: its budget is used up.";
  const { request_chance: chance, keep_from_chance: from } = row;
  if (chance === null || from === null) return "Pre-warming has too little history, or stopping after five minutes without requests would be better.";
  const why = `a request within the next minute is ${percent(chance)} likely, and a replica is worth keeping from ${percent(from)}`;
  return `Pre-warming keeps ${row.is_kept_warm ? "a replica warm" : "no replica"} now: ${why}.`;
}

/** What pre-warming does, and did in the last six weeks. */
export function prewarmed(row: EndpointRow): string {
  if (!row.prewarming) return "Pre-warming is off.";
  const arrivals = row.prewarming_hits + row.prewarming_misses;
  if (arrivals === 0) return "Pre-warming learns from the times of requests.";
  return `${prewarmingNow(row)} Of ${amount(arrivals)} requests after a pause, ${amount(row.prewarming_hits)} met a warm replica: ${amount(row.cold_starts_avoided)} cold starts avoided, ${row.gpu_hours_wasted.toFixed(1)} GPU-hours wasted in six weeks.`;
}

export const head: MakeView = (region) => {
  startTrying();
  return {
    draw(state) {
      const row = endpointOf(state);
      if (row === undefined) return;
      const isSome = row.completed > 0;
      refill(
        region,
        row.problem === "" ? null : h("p", { class: "note amber", role: "note" }, "A replica could not start: ", ...linked(row.problem), "."),
        h(
          "div",
          { class: "counts" },
          figure(amount(row.queued), "waiting", h("small", {}, `of ${amount(row.max_queue)}`)),
          figure(row.oldest_at === null ? "–" : lasting(row.oldest_at), "oldest wait"),
          figure(amount(row.running), "in progress"),
          figure(String(row.warm), "warm", h("small", {}, `of ${row.max_replicas}`)),
          figure(String(row.replicas - row.warm), "cold"),
          figure(row.cold_start_seconds === null ? na("no replica has become warm within 7 days") : latency(row.cold_start_seconds), "cold start, median"),
          figure(latencyOf(row.p50_seconds), "p50"),
          figure(latencyOf(row.p95_seconds), "p95"),
          figure(latencyOf(row.p99_seconds), "p99"),
        ),
        h("p", { class: "muted small after" }, badge(row.state), " ", isSome || endings(row) !== "0 completed" ? `Latest requests: ${endings(row)}.` : "No request ended lately.", isSome && " Latencies are from submit to result, of completed ones."),
        h("p", { class: "muted small after" }, ...(row.prewarming && row.is_kept_warm ? [badge("free", "kept warm"), " "] : []), prewarmed(row)),
      );
    },
  };
};

const sum = (reasons: Record<string, number>): number => Object.values(reasons).reduce((total, count) => total + count, 0);

export function sizes({ from, to }: Pick<BatchRow, "from" | "to">): string {
  return from === to ? String(to) : `${from}–${to}`;
}

/** The requests of a row as parts of a bar, in the order of REASONS. `most`: requests of a full bar. */
function bar(row: BatchRow, most: number): HTMLElement {
  const parts = Object.keys(REASONS).filter((reason) => row.reasons[reason]);
  return h(
    "div",
    { class: "flush-bar", "aria-hidden": "true" },
    ...parts.map((reason) => h("span", { class: `flush-${reason}`, style: `width: ${((100 * (row.reasons[reason] ?? 0)) / most).toFixed(2)}%` })),
  );
}

export const batches: MakeView = (region) => {
  let most = 1;
  const table = new LiveTable<BatchRow>(
    [
      { label: "Batch size", cell: sizes, className: "title" },
      { label: "Requests", cell: (row) => h("div", { class: "flush-line" }, bar(row, most), amount(sum(row.reasons))), className: "wide" },
      { label: "Flush reason", cell: (row) => Object.entries(REASONS).flatMap(([reason, meaning]) => (row.reasons[reason] ? [h("span", { class: "flush-reason", title: meaning }, h("i", { class: `flush-${reason}`, "aria-hidden": "true" }), `${reason} ${amount(row.reasons[reason] ?? 0)} `)] : [])) },
    ],
    () => undefined,
    "rows compact batches",
  );
  return {
    draw(state) {
      const rows = under<BatchRow>(state, "batch:").sort(([, a], [, b]) => a.to - b.to);
      if (rows.length === 0) return refill(region, empty("No batch ended lately."));
      const highest = Math.max(...rows.map(([, row]) => sum(row.reasons)));
      // The bars of other rows depend on the longest one: draw all of them anew when that changes.
      const isRescaled = highest !== most;
      most = highest;
      if (!table.element.isConnected) region.replaceChildren(table.element);
      table.update(rows.map(([key, row]) => ({ key, row: isRescaled ? { ...row } : row })));
    },
  };
};

function replicaState(row: ReplicaRow): Child {
  if (row.is_draining) return badge("stopping", "stops");
  if (row.warm_at === null) return badge(row.job_state === "running" ? "scheduled" : "pending", row.job_state === "running" ? "cold, starts" : "cold, job waits");
  return row.running > 0 ? badge("busy", `warm, ${plural(row.running, "request")}`) : badge("free", "warm, idle");
}

export const replicas: MakeView = (region) => {
  const table = new LiveTable<ReplicaRow>(
    [
      { label: "Job", cell: (row) => jobLink(row.job_id), className: "title" },
      { label: "State", cell: replicaState },
      { label: "Cold start", cell: (row) => (row.cold_start_seconds === null ? lasting(row.created_at) : latency(row.cold_start_seconds)), className: "num" },
      { label: "Started", cell: (row) => ago(row.created_at), className: "nowrap" },
      { label: "Last used", cell: (row) => (row.used_at === null ? null : ago(row.used_at)), className: "nowrap" },
    ],
    () => undefined,
    "rows compact",
  );
  return {
    draw(state) {
      const rows = under<ReplicaRow>(state, "replica:").sort(([, a], [, b]) => a.job_id - b.job_id);
      const endpoint = endpointOf(state);
      const startsOne = endpoint?.state === "active" && endpoint.problem === "";
      if (rows.length === 0) return refill(region, empty(`No replica runs.${startsOne ? " The next request starts one." : ""}`));
      if (!table.element.isConnected) region.replaceChildren(table.element);
      table.update(rows.map(([key, row]) => ({ key, row })));
    },
  };
};

export const costs: MakeView = (region) => {
  const table = new LiveTable<CostRow>(
    [
      { label: "User", cell: (row) => named(row.user), className: "title" },
      { label: "Cost", cell: (row) => amount(row.cost), className: "num" },
      { label: "Requests", cell: (row) => amount(row.requests), className: "num" },
    ],
    () => undefined,
    "rows compact",
  );
  const rest = h("p", { class: "muted small empty" });
  return {
    draw(state) {
      const rows = under<CostRow>(state, "user:").sort(([, a], [, b]) => b.cost - a.cost || byName(a.user, b.user));
      const endpoint = endpointOf(state);
      if (rows.length === 0 || endpoint === undefined) return refill(region, empty("No request was completed in the last 24 hours."));
      if (!table.element.isConnected) region.replaceChildren(table.element, rest);
      table.update(rows.map(([key, row]) => ({ key, row })));
      const others = endpoint.cost_users - rows.length;
      rest.hidden = others <= 0;
      rest.textContent = `${plural(others, "more user")}; all together ${amount(endpoint.cost)}.`;
    },
  };
};

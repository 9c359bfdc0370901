// The parts of the Overview: strip, counts, largest, attention, waiting, tenants.
import { type Child, h, link, na, refill } from "../dom";
import type { MakeView } from "../regions";
import { type Line, LiveTable } from "../rows";
import { waitGroup } from "../states";
import { duration, roughly } from "../time";
import type { AttentionRow, Cell, LargestRow, OverviewStatus, TenantRow, WaitingRow } from "../topics";
import { barScale, bullet, count, empty, jobLink, noNodes, orNone, strip, tenantLink, under } from "./pieces";

type States = readonly (readonly [Cell, number])[];

function states(status: OverviewStatus): States {
  return [
    ["busy", status.busy_gpus],
    ["held_idle", status.held_idle_gpus],
    ["free", status.free_gpus],
    ["unavailable", status.unavailable_gpus],
  ];
}

/** A view of the row `status`, which makes new children each time. */
function ofStatus(draw: (status: OverviewStatus) => Child[]): MakeView {
  return (region) => ({
    draw(state) {
      const status = state.rows.get("status") as OverviewStatus | undefined;
      if (status !== undefined) refill(region, ...draw(status));
    },
  });
}

export const overviewStrip = ofStatus((status) => {
  if (status.total_nodes === 0) return [noNodes()];
  return [strip(states(status))];
});

export const overviewCounts = ofStatus((status) => [
  h(
    "div",
    { class: "counts" },
    count("/fleet/?cell=busy", status.busy_gpus, "busy", "busy"),
    count("/fleet/?cell=held_idle", status.held_idle_gpus, "held idle", "held-idle"),
    count("/fleet/?cell=free", status.free_gpus, "free", "free"),
    count("/fleet/?cell=unavailable", status.unavailable_gpus, "unavailable", "unavailable"),
    count("/nodes/", status.online_nodes, `of ${status.total_nodes} nodes online`, "nodes"),
    count("/jobs/?state=running", status.running_jobs, "running", "running"),
    count("/queue/", status.pending_jobs, "waiting", "pending"),
  ),
  status.pretend_nodes > 0 && h("p", { class: "muted small" }, `${status.pretend_nodes} of these nodes are pretend: no real GPU is behind them.`),
  !status.cycle_is_alive && h("p", { class: "note bad", role: "alert" }, "The scheduler does not run: nothing new starts until it does."),
]);

export const overviewLargest: MakeView = (region) => ({
  draw(state) {
    const rows = under<LargestRow>(state, "largest:").map(([, row]) => row);
    rows.sort((a, b) => b.gpus - a.gpus || a.model.localeCompare(b.model));
    if (rows.length === 0) return refill(region, noNodes());
    const items = rows.map((row) =>
      h("li", {}, h("span", { class: "grow" }, row.model), h("span", {}, h("b", {}, row.gpus), " now, ", h("b", {}, row.on_one_node), " on one node")),
    );
    refill(region, h("ul", { class: "list largest" }, ...items));
  },
});

export const overviewAttention: MakeView = (region) => ({
  draw(state) {
    const rows = under<AttentionRow>(state, "attention:");
    const rank = (row: AttentionRow): number => (row.severity === "red" ? 0 : 1);
    rows.sort(([a, x], [b, y]) => rank(x) - rank(y) || (a < b ? -1 : 1));
    if (rows.length === 0) return refill(region, empty("Nothing needs attention: no device is ill, and none is held idle."));
    const items = rows.map(([, row]) => {
      const mark = h("i", { "aria-hidden": "true" }, row.severity === "red" ? "✕" : "▲");
      const word = h("span", { class: "visually-hidden" }, row.severity === "red" ? "broken: " : "look: ");
      return h("li", { class: `attention attention-${row.severity}` }, h("span", { class: `state state-${row.severity}` }, mark, word), link(row.href, row.sentence));
    });
    refill(region, h("ul", { class: "list attentions" }, ...items));
  },
});

export const overviewWaiting: MakeView = (region) => ({
  draw(state) {
    const rows = under<WaitingRow>(state, "waiting:").map(([, row]) => row);
    const status = state.rows.get("status") as OverviewStatus | undefined;
    if (rows.length === 0) return refill(region, empty("Nobody waits."));
    rows.sort((a, b) => b.jobs - a.jobs || (a.code < b.code ? -1 : 1));
    const fact = (label: string, seconds: number | null | undefined): Child[] => [
      h("dt", {}, label),
      h("dd", { title: seconds == null ? "" : duration(seconds) }, seconds == null ? na("nobody waits") : roughly(seconds)),
    ];
    const items = rows.map((row) =>
      h(
        "li",
        { class: `waiting waiting-${waitGroup("pending", row.code)}` },
        count(`/queue/?reason=${encodeURIComponent(row.code)}`, row.jobs, `${row.code.replaceAll("_", " ")} · ${row.gpus} GPUs`),
        row.example_sentence && h("span", { class: "reason grow" }, row.example_sentence),
        row.example_id !== null && jobLink(row.example_id),
      ),
    );
    refill(
      region,
      h("dl", { class: "facts" }, ...fact("oldest", status?.oldest_wait_seconds), ...fact("90 % wait less than", status?.p90_wait_seconds)),
      h("ul", { class: "list waitings" }, ...items),
    );
  },
});

function standing(tenant: TenantRow): Child {
  const { gpus_held: held, guaranteed_gpus: guaranteed } = tenant;
  if (guaranteed !== null && held > guaranteed) return h("span", { class: "tag tag-borrowed" }, `${held - guaranteed} borrowed`);
  if (guaranteed !== null && held < guaranteed && tenant.jobs_waiting > 0) return h("span", { class: "tag tag-starved" }, "under its guarantee");
  return null;
}

/** Both the Overview's short table and the Tenants page's long one. */
function tenantView(prefix: string, isLong: boolean): MakeView {
  return (region) => {
    let scale = 1;
    const table = new LiveTable<{ tenant: TenantRow; scale: number }>(
      [
        { label: "Tenant", cell: ({ tenant }) => [tenantLink(tenant.name), " ", standing(tenant)] },
        { label: "GPUs", cell: (row) => bullet(row.tenant, row.scale), className: "wide" },
        { label: "Held", cell: ({ tenant }) => tenant.gpus_held, className: "num" },
        { label: "Guaranteed", cell: ({ tenant }) => orNone(tenant.guaranteed_gpus, "guarantee"), className: "num" },
        { label: "Limit", cell: ({ tenant }) => orNone(tenant.max_gpus, "limit"), className: "num" },
        { label: "Waiting", cell: ({ tenant }) => tenant.jobs_waiting, className: "num" },
        ...(isLong
          ? [
              { label: "Live", cell: ({ tenant }: { tenant: TenantRow }) => tenant.jobs_live, className: "num" },
              { label: "Weight", cell: ({ tenant }: { tenant: TenantRow }) => tenant.weight, className: "num" },
              { label: "Tier", cell: ({ tenant }: { tenant: TenantRow }) => tenant.tier ?? "" },
              {
                label: "GPU-hours",
                cell: ({ tenant }: { tenant: TenantRow }) => tenant.usage_gpu_hours?.toFixed(1) ?? na("not counted yet"),
                className: "num",
              },
            ]
          : []),
      ],
      (tr, { tenant }) => {
        if (isLong) tr.id = tenant.name;
        tr.dataset.href = `/tenants/#${encodeURIComponent(tenant.name)}`;
      },
    );
    const made = new WeakMap<TenantRow, { tenant: TenantRow; scale: number }>();
    const drawn = (tenant: TenantRow): { tenant: TenantRow; scale: number } => {
      const known = made.get(tenant);
      if (known !== undefined && known.scale === scale) return known;
      const fresh = { tenant, scale };
      made.set(tenant, fresh);
      return fresh;
    };
    return {
      draw(state) {
        const rows = under<TenantRow>(state, prefix).sort(([, a], [, b]) => b.gpus_held - a.gpus_held || (a.name < b.name ? -1 : 1));
        if (rows.length === 0) return refill(region, empty("You belong to no tenant yet: an admin adds you to one."));
        scale = barScale(rows.map(([, row]) => row));
        table.update(rows.map(([key, row]): Line<{ tenant: TenantRow; scale: number }> => ({ key, row: drawn(row) })));
        if (table.element.parentElement !== region) region.replaceChildren(table.element);
      },
    };
  };
}

export const overviewTenants = tenantView("tenant:", false);
export const tenants = tenantView("", true);

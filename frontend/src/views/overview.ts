// The parts of the Overview: strip, counts, largest, attention, waiting.
import { type Child, h, link, na, plural, refill } from "../dom";
import type { MakeView } from "../regions";
import { badge, waitGroup } from "../states";
import { duration, roughly } from "../time";
import type { AttentionRow, LargestRow, NodeRow, OverviewStatus, WaitingRow } from "../topics";
import { CELL_WORDS, byName, count, empty, jobLink, noNodes, shortModel, strip, under } from "./pieces";

/** Device by device, in the order of the nodes. */
export const overviewStrip: MakeView = (region) => ({
  draw(state) {
    const nodes = ([...state.rows.values()] as NodeRow[]).sort((a, b) => byName(a.name, b.name));
    const cells = nodes.flatMap((node) =>
      node.devices.map(({ cell, index }) => ({ cell, title: `${node.name} GPU ${index}: ${CELL_WORDS[cell]}` })),
    );
    refill(region, nodes.length === 0 ? noNodes() : strip(cells));
  },
});

/** A view of the row `status`, which makes new children each time. */
function ofStatus(draw: (status: OverviewStatus) => Child[]): MakeView {
  return (region) => ({
    draw(state) {
      const status = state.rows.get("status") as OverviewStatus | undefined;
      if (status !== undefined) refill(region, ...draw(status));
    },
  });
}

export const overviewCounts = ofStatus((status) => [
  h(
    "div",
    { class: "counts" },
    count("/fleet/?cell=busy", status.busy_gpus, "busy", "busy"),
    count("/fleet/?cell=held_idle", status.held_idle_gpus, "held but idle", "held_idle"),
    count("/fleet/?cell=free", status.free_gpus, "free", "free"),
    count("/fleet/?cell=unavailable", status.unavailable_gpus, "unavailable", "unavailable"),
    count("/nodes/", `${status.online_nodes} / ${status.total_nodes}`, "nodes online"),
    count("/jobs/?state=running", status.running_jobs, "jobs running"),
    count("/queue/", status.pending_jobs, "jobs waiting"),
    count("/queue/", wait(status.oldest_wait_seconds, status), "oldest wait", "", exactly(status.oldest_wait_seconds)),
    count("/queue/", wait(status.p90_wait_seconds, status), "90 % wait less", "", exactly(status.p90_wait_seconds)),
  ),
  !status.cycle_is_alive &&
    h("p", { class: "note bad", role: "alert" }, "The scheduler does not run: nothing new starts until it does. See the log of the server."),
]);

function wait(seconds: number | null, status: OverviewStatus): Child {
  if (status.pending_jobs === 0) return "–";
  return seconds === null ? na("not known") : roughly(seconds);
}

const exactly = (seconds: number | null): string | null => (seconds === null ? null : duration(seconds));

export const overviewLargest: MakeView = (region) => ({
  draw(state) {
    const rows = under<LargestRow>(state, "largest:").map(([, row]) => row);
    rows.sort((a, b) => b.gpus - a.gpus || a.model.localeCompare(b.model));
    if (rows.length === 0) return refill(region, empty("There are no GPUs: jobs without GPUs can run."));
    const items = rows.map((row) =>
      h(
        "li",
        {},
        h("span", { class: "grow" }, shortModel(row.model)),
        h("span", {}, h("b", {}, row.gpus), row.gpus === 1 ? " GPU" : " GPUs"),
        h("span", { class: "muted" }, `${row.on_one_node} on one node`),
      ),
    );
    refill(region, h("ul", { class: "list" }, ...items));
  },
});

export const overviewAttention: MakeView = (region) => ({
  draw(state) {
    const rows = under<AttentionRow>(state, "attention:");
    const rank = (row: AttentionRow): number => (row.severity === "red" ? 0 : 1);
    rows.sort(([a, x], [b, y]) => rank(x) - rank(y) || (a < b ? -1 : 1));
    if (rows.length === 0) return refill(region, empty("Nothing is broken, and nothing is held but idle."));
    const items = rows.map(([, row]) =>
      h("li", {}, badge(row.severity, row.kind.replaceAll("_", " ")), h("span", { class: "grow" }, link(row.href, row.sentence))),
    );
    refill(region, h("ul", { class: "list" }, ...items));
  },
});

export const overviewWaiting: MakeView = (region) => ({
  draw(state) {
    const rows = under<WaitingRow>(state, "waiting:").map(([, row]) => row);
    if (rows.length === 0) return refill(region, empty("Nobody waits."));
    rows.sort((a, b) => b.jobs - a.jobs || (a.code < b.code ? -1 : 1));
    const items = rows.map((row) =>
      h(
        "li",
        { class: `waits-on-${waitGroup("pending", row.code)}` },
        h("b", {}, row.jobs),
        h("a", { class: "nowrap", href: `/queue/?reason=${encodeURIComponent(row.code)}` }, row.code.replaceAll("_", " ") || "waiting"),
        h("span", { class: "muted nowrap" }, plural(row.gpus, "GPU")),
        row.example_id !== null &&
          h("span", { class: "grow reason" }, row.example_sentence, " ", jobLink(row.example_id, `job ${row.example_id}`)),
      ),
    );
    refill(region, h("ul", { class: "list" }, ...items));
  },
});

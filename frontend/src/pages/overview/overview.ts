// The parts of the Overview but the strip: counts, largest, attention, waiting.
import { type Child, h, link, na, plural } from "../../ui/dom";
import { redraw } from "../../ui/morph";
import { Estimates } from "../queue/estimates";
import { type EstimateResult, estimateCell } from "../queue/row";
import type { MakeView } from "../../live/regions";
import { badge, waitGroup } from "../../ui/states";
import type { TopicState } from "../../live/store";
import { clocked, clockedText, duration, lasting, roughly } from "../../ui/time";
import type { AttentionPart, AttentionRow, Cell, LargestRow, NextRow, OverviewStatus, WaitingRow } from "../../live/topics";
import { CELLS, CELL_WORDS, count, empty, jobLink, nodeLink, moreItem, shortModel, under, upTo } from "../../ui/pieces";

/** Lines that fit the page; the rest is counted and linked. */
const [NOTICES, REASONS, MODELS] = [7, 6, 4];

/** A view of the row `status`, redrawn each time. */
function ofStatus(draw: (status: OverviewStatus) => Child[]): MakeView {
  return (region) => ({
    draw(state) {
      const status = state.rows.get("status") as OverviewStatus | undefined;
      if (status !== undefined) redraw(region, ...draw(status));
    },
  });
}

export const overviewCounts = ofStatus((status) => {
  const part = (cell: Cell): Child => count(`/fleet/?cell=${cell}`, gpus(status, cell), CELL_WORDS[cell], cell);
  return [
    h(
      "div",
      { class: "counts" },
      ...CELLS.map(part),
      count("/nodes/", `${status.online_nodes} / ${status.total_nodes}`, "nodes online"),
      count("/jobs/?state=running", status.running_jobs, "jobs running"),
      count("/queue/", status.pending_jobs, "jobs waiting or held"),
    ),
    !status.cycle_is_alive &&
      h("p", { class: "note bad", role: "alert" }, "The scheduler is not running. No new job starts until it runs again. Check the server's log."),
  ];
});

/** The number of GPUs and their share. */
function gpus(status: OverviewStatus, cell: Cell): Child {
  const number = status[`${cell}_gpus`];
  const share = status.total_gpus === 0 || number === 0 ? "" : ` ${percent(number / status.total_gpus)}`;
  return h("span", {}, number, share !== "" && h("small", {}, share));
}

/** A non-zero share never reads 0 %, an incomplete one never 100 %. */
function percent(part: number): string {
  return part < 0.01 ? "< 1 %" : `${part > 0.99 && part < 1 ? 99 : Math.round(part * 100)} %`;
}

export const overviewLargest: MakeView = (region) => ({
  draw(state) {
    const rows = under<LargestRow>(state, "largest:").map(([, row]) => row);
    rows.sort((a, b) => b.gpus - a.gpus || a.model.localeCompare(b.model));
    const visible = upTo(MODELS, rows);
    if (rows.length === 0) return redraw(region, empty("There are no GPUs. Jobs that request none can run."));
    const items = visible.map((row) =>
      h(
        "li",
        {},
        h("a", { class: "grow", href: `/fleet/?cell=free&model=${encodeURIComponent(row.model)}` }, shortModel(row.model)),
        h("span", {}, h("b", {}, row.gpus), row.gpus === 1 ? " GPU" : " GPUs"),
        h("span", { class: "muted on-one" }, `${row.on_one_node} on one node`),
      ),
    );
    redraw(region, h("ul", { class: "list" }, ...items, moreItem(rows.length - visible.length, "more models", "/fleet/?group=model")));
  },
});

/** The badge of each kind. */
const MARKS: Record<string, string> = { scheduler: "red", gpu_lost: "lost", closed: "cordoned" };
const NAMES: Record<string, string> = { held_idle: "held idle", gpu_lost: "GPU lost", closed: "closed" };

export const overviewAttention: MakeView = (region) => ({
  draw(state) {
    const rows = under<AttentionRow>(state, "attention:").map(([, row]) => row);
    const rank = (row: AttentionRow): number => ["red", "amber", "note"].indexOf(row.severity);
    rows.sort((a, b) => rank(a) - rank(b) || b.count - a.count || (a.kind < b.kind ? -1 : 1));
    if (rows.length === 0) return redraw(region, empty("Nothing needs attention."));
    const visible = upTo(NOTICES, rows);
    redraw(region, h("ul", { class: "list" }, ...visible.map(notice), moreItem(rows.length - visible.length, "more problems", "/cluster/health/")));
  },
});

function notice(row: AttentionRow): HTMLElement {
  const places = row.parts.flatMap((part, at): Child[] => [at > 0 && ", ", place(part)]);
  const more = row.more > 0 && h("span", { class: "muted" }, ` and ${row.more} more`);
  return h(
    "li",
    { class: `is-${row.severity}`, "data-key": row.kind },
    badge(MARKS[row.kind] ?? row.kind, NAMES[row.kind] ?? row.kind),
    h("span", { class: "grow", title: places.length > 0 ? partsText(row) : null }, link(row.href, row.sentence), places.length > 0 && h("span", { class: "places" }, ...places, more)),
  );
}

/** All parts as text, for the title. */
function partsText({ parts, more }: AttentionRow): string {
  const places = parts.map(({ job, node, words }) => [job === null ? node : `job ${job}`, words].filter(Boolean).join(" "));
  return `${places.join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
}

function place(part: AttentionPart): Child {
  const since = part.since !== null && h("span", { class: "muted" }, " for ", lasting(part.since));
  const words = part.words === "" ? "" : ` ${part.words}`;
  if (part.job !== null) return h("span", {}, jobLink(part.job, `job ${part.job}`), h("span", { class: "muted" }, words), since);
  if (part.node !== null) return h("span", {}, nodeLink(part.node), h("span", { class: "muted" }, words), since);
  return h("span", { class: "muted" }, part.words);
}

export const overviewWaiting: MakeView = (region) => {
  let last: TopicState | null = null;
  const estimates = new Estimates(() => last !== null && drawWaiting(region, last, estimates));
  return {
    draw(state) {
      last = state;
      drawWaiting(region, state, estimates);
    },
    close: () => estimates.close(),
  };
};

function drawWaiting(region: HTMLElement, state: TopicState, estimates: Estimates): void {
  const status = state.rows.get("status") as OverviewStatus | undefined;
  const rows = under<WaitingRow>(state, "waiting:").map(([, row]) => row);
  if (rows.length === 0) return redraw(region, noneWaits());
  rows.sort((a, b) => b.jobs - a.jobs || (a.code < b.code ? -1 : 1));
  const next = under<NextRow>(state, "next:").map(([, row]) => row).sort((a, b) => a.place - b.place);
  const visible = upTo(REASONS, rows);
  estimates.want(next.map((row) => row.id));
  redraw(
    region,
    status && status.oldest_wait_seconds !== null && h("p", { class: "waits", "data-key": "oldest", title: "held jobs are not counted" }, ...waits(status)),
    next.length > 0 && h("p", { class: "waits", "data-key": "next" }, "next to start: ", ...next.flatMap((row, at): Child[] => [at > 0 && ", ", candidate(row, estimates.of(row.id))])),
    h("ul", { class: "list" }, ...visible.map(reason), moreItem(rows.length - visible.length, "more reasons", "/queue/")),
  );
}

function waits(status: OverviewStatus): Child[] {
  const formatted = (seconds: number | null): Child => (seconds === null ? na("not known") : h("b", { title: duration(seconds) }, roughly(seconds)));
  return ["oldest ", formatted(status.oldest_wait_seconds), " · 90 % wait less than ", formatted(status.p90_wait_seconds)];
}

function reason(row: WaitingRow): HTMLElement {
  return h(
    "li",
    { class: `waits-on-${waitGroup("pending", row.code)}`, "data-key": row.code },
    h("b", { class: "how-many" }, row.jobs),
    h("a", { class: "nowrap code", href: `/queue/?reason=${encodeURIComponent(row.code)}` }, row.code.replaceAll("_", " ") || "waiting"),
    h("span", { class: "muted nowrap" }, plural(row.gpus, "GPU")),
    row.example_id !== null && row.example_sentence !== null && h("span", { class: "grow reason", title: clockedText(row.example_sentence) }, jobLink(row.example_id, `job ${row.example_id}`), " ", ...clocked(row.example_sentence)),
  );
}

function candidate(row: NextRow, result: EstimateResult | undefined): HTMLElement {
  const request = row.gpu_count === 0 ? "CPU only" : plural(row.gpu_count, "GPU");
  // Show no estimate if there is none; the queue says why.
  const estimate = result?.estimate;
  const when = estimate && (estimate.p50_at ?? estimate.p90_at ?? estimate.later_than) !== null && estimateCell(result);
  return h("span", { title: row.sentence && clockedText(row.sentence) }, jobLink(row.id, row.name || `job ${row.id}`), ` ${request}`, when && " ", when);
}

function noneWaits(): HTMLElement {
  return empty("No jobs are waiting. To run one: ", h("code", { class: "copy" }, "gpusched submit --gpus 1 -- nvidia-smi"));
}

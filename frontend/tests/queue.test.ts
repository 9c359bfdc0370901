// The queue: geometry, windows, holding under the pointer, filters in the URL.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Detail } from "../src/pages/queue/detail";
import { Estimates } from "../src/pages/queue/estimates";
import { Geometry, type Group } from "../src/pages/queue/geometry";
import { changed, topicQuery } from "../src/pages/queue/filters";
import { HeldView } from "../src/pages/queue/held";
import { type EstimateResult, estimateCell, jobRow } from "../src/pages/queue/row";
import { queue } from "../src/pages/queue/view";
import { WINDOW, Windows } from "../src/pages/queue/windows";
import type { Page } from "../src/live/regions";
import type { TopicState } from "../src/live/store";
import type { QueueRow, QueueTotal } from "../src/live/topics";

const HEIGHTS = { row: 10, heading: 4 };
const groups: Group[] = [{ group: "next", rows: 2, jobs: 2, gpus: 2 }, { group: "capacity", rows: 100_000, jobs: 100_000, gpus: 5 }, { group: "held", rows: 1, jobs: 1, gpus: 1 }];
const row = (id: number, more: Partial<QueueRow> = {}): QueueRow => ({
  id, name: `job ${id}`, tenant: "red", user: "ann", state: "pending", gpu_count: 2, gpu_model: null, gpu_memory_mb: null, priority: 500,
  position: id, gpus_ahead: 0, group: "capacity", submitted_at: "2026-01-31T08:00:00Z", reason: { code: "capacity", sentence: `because ${id}`, next_step: "" }, ...more,
});
const total = (order: number[], jobs = order.length): QueueTotal => ({ jobs, gpus: 2 * jobs, shown: order.length, rows: jobs, matching: jobs, groups: [{ group: "capacity", rows: jobs, jobs, gpus: 2 * jobs }], order });
const state = (ids: number[], jobs = ids.length): TopicState => ({
  status: "ready", seq: 1, error: null, hasRows: true,
  rows: new Map<string, object>([...ids.map((id) => [String(id), row(id)] as const), ["total", total(ids, jobs)]]),
});

/** Stands for the hub: what is listened to, and a way to say something there. */
class Feed {
  readonly topics = new Map<string, (state: TopicState) => void>();
  listen(topic: string, listener: (state: TopicState) => void): () => void {
    this.topics.set(topic, listener);
    return () => this.topics.delete(topic);
  }
  say(topic: string, rows: TopicState): void {
    this.topics.get(topic)?.(rows);
  }
}

test("positions of a hundred thousand jobs are computed", () => {
  const lines = new Geometry(groups, true, HEIGHTS);
  expect([lines.lines, lines.height]).toEqual([100_006, 3 * 4 + 100_003 * 10]);
  expect(lines.at(0)).toEqual({ heading: groups[0] });
  expect(lines.at(3)).toEqual({ heading: groups[1] });
  expect(lines.at(4)).toEqual({ job: 2 });
  expect(lines.at(100_005)).toEqual({ job: 100_002 });
  for (const line of [0, 1, 3, 4, 50_000, 100_004, 100_005]) {
    expect(lines.lineAt(lines.top(line))).toBe(line);
    expect(lines.lineAt(lines.top(line + 1) - 1)).toBe(line);
  }
  expect([0, 1, 2, 100_002].map((job) => lines.lineOf(job))).toEqual([1, 2, 4, 100_005]);
});

test("an opened row moves only the lines below it", () => {
  const lines = new Geometry(groups, false, HEIGHTS, { job: 5, height: 100 });
  expect([lines.top(5), lines.top(6), lines.height]).toEqual([50, 160, 100_003 * 10 + 100]);
  expect([lines.lineAt(59), lines.lineAt(155), lines.lineAt(160)]).toEqual([5, 5, 6]);
});

test("only the windows in sight and their neighbours are subscribed", () => {
  const feed = new Feed();
  const windows = new Windows(feed, "tenant=red", () => undefined);
  windows.want(0, 30);
  expect([...feed.topics.keys()]).toEqual(["queue:0-200?tenant=red"]);
  windows.want(WINDOW - 10, WINDOW + 20);
  windows.want(10 * WINDOW, 10 * WINDOW + 30);
  expect([...feed.topics.keys()]).toEqual(["queue:2000-2200?tenant=red"]);
});

test("under the pointer the order holds, contents update, and changes are counted", () => {
  const feed = new Feed();
  const allocated = new HeldView();
  const windows = new Windows(feed, "", () => allocated.update(windows));
  windows.want(0, 10);
  feed.say("queue:0-200", state([1, 2, 3]));
  allocated.hold();
  feed.say("queue:0-200", state([7, 1, 3, 8]));
  expect([0, 1, 2].map((job) => [allocated.row(job).row?.id, allocated.row(job).isGone])).toEqual([[1, false], [2, true], [3, false]]);
  expect([allocated.news, allocated.total?.matching]).toEqual(["2 new", 3]);
  allocated.release();
  allocated.adopt(windows);
  expect([0, 1, 2, 3].map((job) => allocated.row(job).row?.id)).toEqual([7, 1, 3, 8]);
  expect(allocated.news).toBe("");
  allocated.hold();
  feed.say("queue:0-200", state([1, 7, 3, 8]));
  expect(allocated.news).toBe("new order");
});

test("new rows are counted, or only the difference of totals in a partial queue", () => {
  const feed = new Feed();
  const allocated = new HeldView();
  const windows = new Windows(feed, "", () => allocated.update(windows));
  const news = (rows: TopicState): string => {
    feed.say("queue:0-200", rows);
    return allocated.news;
  };
  windows.want(0, 10);
  news(state([1, 2, 3]));
  allocated.hold();
  expect([news(state([3, 4, 5, 6, 7, 8])), news(state([2, 3])), news(state([1, 2, 3]))]).toEqual(["5 new", "1 row gone", ""]);
  allocated.release();
  news(state([1, 2, 3], 1000));
  allocated.hold();
  expect([news(state([2, 3, 4], 1003)), news(state([2, 3, 4], 999))]).toEqual(["3 rows more", "1 row fewer"]);
});

test("filters and order are in the URL and, in fixed order, in the topic", () => {
  expect(topicQuery("?q=train&tenant=nlp&other=1&sort=-gpus")).toBe("tenant=nlp&q=train&sort=-gpus");
  expect(topicQuery("?group=you&reason=quota_wait&state=held&user=ann")).toBe("user=ann&state=held&reason=quota_wait&group=you");
  expect(topicQuery("?sort=secret&reason=")).toBe("");
  expect(changed("?tenant=nlp&q=x", "tenant", "")).toBe("?q=x");
});

test("an estimate is relative, with its sentence as title", () => {
  const now = Date.parse("2026-01-31T08:00:00Z");
  const cached = (at: string | null, sentence: string): EstimateResult => ({ estimate: { p50_at: at, p90_at: null, later_than: null, sentence }, estimate_reason: null });
  const soon = estimateCell(cached("2026-01-31T08:12:00Z", "starts soon"), now);
  expect([soon.textContent, soon.title]).toEqual(["in 12 min", "starts soon"]);
  expect(estimateCell(cached(null, "no estimate"), now).textContent).toBe("none");
  const unknown = estimateCell({ estimate: null, estimate_reason: "no estimate: it is held" });
  expect([unknown.textContent, unknown.title]).toEqual(["n/a", "no estimate: it is held"]);
  expect(estimateCell(undefined).textContent).toBe("–");
});

test("hostile names are text", () => {
  const tr = jobRow(row(1, { name: "<script>x</script><b>y", user: "<i>" }), undefined, false, () => undefined);
  expect(tr.querySelector("script, b, i")).toBeNull();
  expect(tr.textContent).toContain("<script>");
});

let region: HTMLElement;
beforeEach(() => {
  region = document.createElement("section");
  document.body.replaceChildren(region);
  vi.stubGlobal("requestAnimationFrame", (run: () => void) => run());
  vi.stubGlobal("fetch", () => Promise.reject(new Error("no server")));
});
afterEach(() => vi.unstubAllGlobals());

test("a long queue has elements only for visible rows", () => {
  const feed = new Feed();
  const view = queue(region, { hub: feed } as unknown as Page);
  const ids = Array.from({ length: WINDOW }, (_, at) => at + 1);
  feed.say("queue:0-200", state(ids, 10_000));
  const rows = region.querySelectorAll("tbody tr[data-key]");
  expect(rows.length).toBeLessThan(80);
  expect(region.querySelector("tr.group")?.textContent).toBe("Waits on capacity · 10000 jobs, 20000 GPUs");
  expect(region.querySelector("table")?.getAttribute("aria-rowcount")).toBe("10002");
  const spacer = region.querySelector<HTMLElement>("tbody tr.spacer:last-child");
  expect(Number.parseInt(spacer?.style.height ?? "0", 10)).toBeGreaterThan(10_000 * 40);
  view.close?.();
  expect(feed.topics.size).toBe(0);
});

test("an empty queue shows the text of its template", () => {
  region.innerHTML = '<template><div class="empty">No job waits at all</div></template>';
  const feed = new Feed();
  const view = queue(region, { hub: feed } as unknown as Page);
  feed.say("queue:0-200", state([]));
  expect(region.textContent).toBe("No job waits at all");
  view.close?.();
});

test("estimates are requested for visible jobs, again only for new ones", async () => {
  vi.useFakeTimers();
  const messages = { 7: { estimate: { p50_at: null, p90_at: null, later_than: null, sentence: "soon" }, estimate_reason: null }, 9: { estimate: null, estimate_reason: "too many" } };
  const get = vi.fn(async (_: string) => new Response(JSON.stringify(messages)));
  const changed = vi.fn();
  const estimates = new Estimates(changed, get);
  estimates.want([7, 8]);
  await vi.advanceTimersByTimeAsync(400);
  expect(get.mock.calls).toEqual([["/queue/estimates/?ids=7,8"]]);
  expect([estimates.of(7)?.estimate?.sentence, estimates.of(8), estimates.of(9)?.estimate_reason]).toEqual(["soon", undefined, "too many"]);
  estimates.want([8]);
  await vi.advanceTimersByTimeAsync(400);
  expect(get).toHaveBeenCalledTimes(1);
  estimates.want([8, 9]);
  await vi.advanceTimersByTimeAsync(400);
  expect(get).toHaveBeenLastCalledWith("/queue/estimates/?ids=8,9");
  const hidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
  estimates.want([10]);
  await vi.advanceTimersByTimeAsync(400);
  expect(get, "the page is hidden").toHaveBeenCalledTimes(2);
  hidden.mockRestore();
  estimates.want(Array.from({ length: 501 }, (_, id) => id));
  await vi.advanceTimersByTimeAsync(400);
  expect(get.mock.lastCall?.[0].split(",").length, "more at once the server does not answer").toBe(500);
  estimates.close();
  vi.useRealTimers();
});

test("an answer about earlier rows does not replace a later one", async () => {
  vi.useFakeTimers();
  const answers: ((response: Response) => void)[] = [];
  const estimates = new Estimates(() => undefined, () => new Promise((resolve) => answers.push(resolve)));
  const answer = (id: number): Response => new Response(JSON.stringify({ [id]: { estimate: null, estimate_reason: "too many" } }));
  for (const id of [7, 8]) {
    estimates.want([id]);
    await vi.advanceTimersByTimeAsync(400);
  }
  answers[1]?.(answer(8));
  await vi.advanceTimersByTimeAsync(0);
  answers[0]?.(answer(7));
  await vi.advanceTimersByTimeAsync(0);
  expect([estimates.of(7), estimates.of(8)?.estimate_reason]).toEqual([undefined, "too many"]);
  estimates.close();
  vi.useRealTimers();
});

test("an opened row shows the known part at once, and queries the scheduler only while open", async () => {
  const requests: string[] = [];
  vi.stubGlobal("fetch", async (address: string) => {
    requests.push(address);
    return new Response(`<dl>${address.endsWith("now") ? "computing" : "in an hour"}</dl>`);
  });
  vi.stubGlobal("ResizeObserver", class { observe(): void {} disconnect(): void {} });
  const detail = new Detail(() => undefined);
  detail.toggle(7);
  await vi.waitFor(() => expect(detail.element.textContent).toContain("in an hour"));
  expect(requests).toEqual(["/jobs/7/foreseen/?part=now", "/jobs/7/foreseen/"]);
  detail.toggle(8);
  detail.close();
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(requests.slice(2)).toEqual(["/jobs/8/foreseen/?part=now"]);
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("Failed to fetch")));
  detail.toggle(9);
  await vi.waitFor(() => expect(detail.element.textContent).toContain("This could not be loaded: the server gave no answer."));
  vi.unstubAllGlobals();
});

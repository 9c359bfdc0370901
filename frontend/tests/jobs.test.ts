// The list of jobs: merging of feed and pages, and bulk actions.
import { expect, test, vi } from "vitest";
import { perform, caution, fitting } from "../src/pages/jobs/actions";
import { Listing, fits, merged, restQuery } from "../src/pages/jobs/listing";
import { watchFilters } from "../src/pages/queue/filters";
import { Selection } from "../src/pages/jobs/selection";
import type { Page } from "../src/live/regions";
import type { JobRow } from "../src/live/topics";
import { jobs } from "../src/pages/jobs/jobs";

const job = (id: number, state = "running", more: Partial<JobRow> = {}): JobRow => ({
  id, name: `train ${id}`, tenant: "red", user: "ann", state, reason: null, gpu_count: 2, nodes: [], submitted_at: "2026-01-31T08:00:00Z", started_at: null, ended_at: null, exit_code: null, attempt: 1, ...more,
});
const feed = (...rows: JobRow[]): Map<string, JobRow> => new Map(rows.map((row) => [String(row.id), row]));
const read = (...rows: JobRow[]): Map<number, JobRow> => new Map(rows.map((row) => [row.id, row]));

test("feed rows override read rows within the range and filter", () => {
  const matches = merged(read(job(5), job(3)), feed(job(6), job(5, "completed"), job(1)), "", false);
  expect(matches.map(({ id, state }) => [id, state])).toEqual([[6, "running"], [5, "completed"], [3, "running"]]);
  expect(merged(read(job(5), job(3)), feed(job(5, "completed")), "state=running", true).map((row) => row.id)).toEqual([3]);
  expect(merged(read(), feed(job(2), job(9, "failed")), "state=final", true).map((row) => row.id)).toEqual([9]);
});

test("filters are the server's", () => {
  expect(restQuery("?state=live&user=ann&page=2&name=%20")).toBe("user=ann&state=live");
  expect(fits(job(1, "stopping"), "state=live")).toBe(true);
  expect(fits(job(1, "pending"), "state=live,final")).toBe(false);
  expect(fits(job(1), "name=TRAIN&tenant=red")).toBe(true);
  expect(fits(job(1), "user=bob")).toBe(false);
  expect(fits(job(1), "array=7")).toBe(false);
  for (const zone of ["Pacific/Auckland", "America/New_York"]) {
    vi.stubEnv("TZ", zone);
    const times = ["2026-01-31T07:59", "2026-01-31 08:01", "2026-01-31T08:59+01:00", "2026-01-31T09:01 01:00", "2026-01-31T08:00:00.5Z"];
    expect(times.map((time) => fits(job(1), new URLSearchParams({ submitted_after: time }).toString())), zone).toEqual([true, false, true, false, false]);
  }
  vi.unstubAllEnvs();
  expect([fits(job(1), "submitted_after=2026-01-31"), fits(job(1), "submitted_after=2026-02-01"), fits(job(1), "submitted_before=2026-01-31")]).toEqual([true, false, false]);
});

test("older pages follow by cursor and are reloaded together", async () => {
  const requests: string[] = [];
  const get = (url: string): Promise<Response> => {
    requests.push(url);
    const isFirst = !url.includes("cursor");
    return Promise.resolve(new Response(JSON.stringify({ items: [job(isFirst ? 9 : 4)], next_cursor: isFirst ? "abc" : null })));
  };
  const listing = new Listing("state=final", () => undefined, get);
  await listing.reload();
  expect([listing.hasOlder, [...listing.read.keys()]]).toEqual([true, [9]]);
  await listing.older();
  expect([listing.hasOlder, [...listing.read.keys()]]).toEqual([false, [9, 4]]);
  await listing.reload();
  const [first, older] = ["/api/v1/jobs?state=final&limit=100", "/api/v1/jobs?state=final&limit=100&cursor=abc"];
  // They are counted only where some are not read.
  expect(requests).toEqual([first, "/api/v1/jobs/count?state=final", older, first, older]);
});

test("a page left open shows as many jobs as a new one (A52)", async () => {
  const region = document.createElement("div");
  const older = Array.from({ length: 100 }, (_, at) => job(100 - at));
  vi.stubGlobal("fetch", () => Promise.resolve(new Response(JSON.stringify({ items: older, next_cursor: null }))));
  const view = jobs(region, {} as Page);
  await vi.waitFor(() => expect(region.querySelectorAll("tbody tr")).toHaveLength(100));
  const rows = feed(...Array.from({ length: 150 }, (_, at) => job(150 - at)));
  view.draw({ status: "ready", seq: 1, rows, error: null, hasRows: true });
  const visible = [...region.querySelectorAll<HTMLElement>("tbody tr")].map((tr) => Number(tr.dataset.key));
  expect(visible).toEqual(Array.from({ length: 100 }, (_, at) => 150 - at));
  view.close?.();
  vi.unstubAllGlobals();
});

test("the page's own rows are drawn without a request", () => {
  const request = vi.fn();
  vi.stubGlobal("fetch", request);
  const carried = { items: [job(5), job(3)], next_cursor: "older", total: { jobs: 9, is_more: false, with_elements: 9, at: "2026-01-31T08:00:00Z" } };
  document.body.innerHTML = `<section></section><script type="application/json" data-listing>${JSON.stringify(carried)}</script>`;
  const region = document.querySelector("section") as HTMLElement;
  const view = jobs(region, {} as Page);
  expect([...region.querySelectorAll<HTMLElement>("tbody tr")].map((tr) => tr.dataset.key)).toEqual(["5", "3"]);
  expect(region.querySelector(".summary")?.textContent).toContain("9 jobs, 2 of them listed. Counted");
  expect(region.textContent).toContain("Show older jobs");
  expect(request).not.toHaveBeenCalled();
  view.close?.();
  document.body.innerHTML = '<section></section><script type="application/json" data-listing>{"problem": "state: no such state"}</script>';
  jobs(document.querySelector("section") as HTMLElement, {} as Page).close?.();
  expect(document.querySelector("section")?.textContent).toBe("The jobs could not be loaded: state: no such state. Show all.");
  document.body.innerHTML = "";
  vi.unstubAllGlobals();
});

test("an empty list offers no older jobs", async () => {
  const region = document.createElement("div");
  region.innerHTML = "<template><p>No jobs yet.</p></template>";
  vi.stubGlobal("fetch", () => Promise.resolve(new Response('{"items": [], "next_cursor": null}')));
  jobs(region, {} as Page);
  await vi.waitFor(() => expect(region.textContent).toContain("No job"));
  expect(region.querySelector<HTMLElement>("p.summary")?.hidden).toBe(true);
  vi.unstubAllGlobals();
});

test("a refusal shows the server's sentence", async () => {
  const listing = new Listing("state=odd", () => undefined, () => Promise.resolve(new Response('{"detail": "there is no state odd"}', { status: 400 })));
  await listing.reload();
  expect(listing.problem).toBe("there is no state odd");
});

test("caution depends on verb and states", () => {
  const waiting = [job(1, "pending"), job(2, "held")];
  expect(fitting("hold", waiting).map((row) => row.id)).toEqual([1]);
  // An array that runs can be held and never requeued; what an admin holds only an admin releases.
  const array = { ...job(4), array: { count: 9, max_parallel: null, remaining: 3, by_state: { running: 2 } } };
  expect([fitting("hold", [array, job(3)]), fitting("requeue", [array, job(3)])].map((rows) => rows.map((row) => row.id))).toEqual([[4], [3]]);
  const allocated = { ...job(5, "held"), reason: { code: "held_by_admin", sentence: "held by an admin", next_step: null } };
  expect([fitting("release", [allocated]).length, fitting("release", [allocated], true).length]).toEqual([0, 1]);
  expect(fitting("cancel", [...waiting, job(3, "completed")]).map((row) => row.id)).toEqual([1, 2]);
  expect([caution("hold", waiting), caution("cancel", waiting), caution("cancel", [...waiting, job(3)])]).toEqual(["none", "undo", "ask"]);
});

test("a stop shows the loss, requires typed text, and is sent once", async () => {
  const requests: string[] = [];
  const posts: string[] = [];
  let loss = { sentence: "1 job and 20 elements run on 21 GPUs.", typed: "7" };
  vi.stubGlobal("fetch", (address: string, { body }: { body: URLSearchParams | null }) => {
    if (body === null) requests.push(address);
    else posts.push(body.toString());
    return Promise.resolve(new Response(JSON.stringify(body === null ? loss : { done: [7], refused: [] })));
  });
  document.body.innerHTML = '<form data-act-on-several action="/jobs/act/"></form>';
  HTMLDialogElement.prototype.showModal = function () { this.open = true; };
  const answered = perform("cancel", [job(7)], () => undefined);
  await vi.waitFor(() => expect(document.querySelector("dialog")?.textContent).toContain("on 21 GPUs"));
  const [yes, typed] = [document.querySelector("dialog .danger") as HTMLButtonElement, document.querySelector("dialog input") as HTMLInputElement];
  expect([requests, yes.disabled]).toEqual([["/jobs/loss/?ids=7"], true]);
  // Enter in the field presses it.
  expect(document.querySelector("dialog form [type=submit]")).toBe(yes);
  typed.value = "7";
  typed.dispatchEvent(new Event("input"));
  expect(yes.disabled).toBe(false);
  document.querySelector("dialog")?.close("yes");
  await answered;
  expect(posts).toEqual(["verb=cancel&ids=7&typed=7"]);
  loss = { ...loss, typed: "" };
  void perform("requeue", [job(7), job(8)], () => undefined);
  await vi.waitFor(() => expect(document.querySelector<HTMLButtonElement>("dialog .danger")?.disabled).toBe(false));
  expect(document.querySelector("dialog input")).toBeNull();
  document.querySelector<HTMLButtonElement>("dialog [type=button]")?.click();
  expect([document.querySelector("dialog"), posts.length]).toEqual([null, 1]);
  // The second press is only about those that the first was not.
  await perform("cancel", [job(1, "pending")], () => undefined);
  await perform("cancel", [job(1, "pending")], () => undefined);
  await perform("cancel", [job(1, "pending"), job(2, "held")], () => undefined);
  expect([...document.querySelectorAll(".toast > span:first-child")].map((element) => element.textContent).slice(-2)).toEqual(["1 waiting job will be cancelled in 5 s.", "1 waiting job will be cancelled in 5 s."]);
  for (const button of document.querySelectorAll<HTMLButtonElement>(".toast button")) if (button.textContent === "Do it now") button.click();
  await vi.waitFor(() => expect(posts.length).toBe(3));
  expect(posts.slice(1).map((body) => new URLSearchParams(body).get("ids"))).toEqual(["1", "2"]);
  vi.unstubAllGlobals();
});

test("a filter without field stays until a field overrides it", async () => {
  document.body.innerHTML = `<form data-filters><input name="name"><input type="checkbox" name="user" value="ann"></form>
    <p><a data-drops="user" href="/jobs/">owner: bob</a><a data-drops="array" href="/jobs/?user=bob">array: 7</a></p>`;
  const requests: string[] = [];
  history.replaceState(null, "", "?user=bob&array=7");
  const stop = watchFilters((search) => void (requests.push(search), history.replaceState(null, "", search)));
  const [name, mine] = [...document.querySelectorAll("input")] as [HTMLInputElement, HTMLInputElement];
  name.value = "train";
  name.dispatchEvent(new Event("change", { bubbles: true }));
  await vi.waitFor(() => expect(requests).toEqual(["?user=bob&array=7&name=train"]));
  const pills = (): (string | null)[] => [...document.querySelectorAll("a[data-drops]")].map((pill) => pill.getAttribute("href"));
  expect(pills()).toEqual(["?array=7&name=train", "?user=bob&name=train"]);
  mine.checked = true;
  mine.dispatchEvent(new Event("change", { bubbles: true }));
  await vi.waitFor(() => expect(requests[1]).toBe("?user=ann&array=7&name=train"));
  expect(pills()).toEqual(["?user=ann&name=train"]);
  mine.checked = false;
  mine.dispatchEvent(new Event("change", { bubbles: true }));
  await vi.waitFor(() => expect(requests[2]).toBe("?array=7&name=train"));
  stop();
  history.replaceState(null, "", location.pathname);
  document.body.innerHTML = "";
});

test("only jobs that the user can act on are selectable", async () => {
  const list = async (data: string): Promise<HTMLElement> => {
    document.body.innerHTML = `<form data-act-on-several ${data}></form>`;
    const region = document.createElement("div");
    const items = [job(3, "pending", { user: "bob" }), job(2), job(1, "pending", { tenant: "blue", user: "bob" })];
    vi.stubGlobal("fetch", () => Promise.resolve(new Response(JSON.stringify({ items, next_cursor: null }))));
    jobs(region, {} as Page);
    await vi.waitFor(() => expect(region.querySelectorAll("tbody tr")).toHaveLength(3));
    return region;
  };
  const boxes = (region: HTMLElement): (string | undefined)[] => [...region.querySelectorAll<HTMLElement>("[data-select]")].map((box) => box.dataset.select);
  expect(boxes(await list('data-admin data-user="root" data-member="" data-owner=""'))).toEqual(["3", "2", "1"]);
  expect(boxes(await list('data-user="ann" data-member="red blue" data-owner="blue"'))).toEqual(["2", "1"]);
  const viewer = await list('data-user="ann" data-member="" data-owner=""');
  expect([boxes(viewer), viewer.querySelectorAll("[type=checkbox]").length]).toEqual([[], 0]);
  const outsider = await list('data-user="eve" data-member="red" data-owner=""');
  expect([boxes(outsider), outsider.querySelector<HTMLElement>("[type=checkbox]")?.hidden]).toEqual([[], true]);
  // The key selects what a box would.
  const ownCells = await list('data-user="ann" data-member="red" data-owner=""');
  const press = (id: number): unknown => ownCells.querySelector(`tr[data-key="${id}"]`)?.dispatchEvent(new KeyboardEvent("keydown", { key: "x", bubbles: true }));
  press(3);
  press(2);
  expect(ownCells.querySelector(".selection-bar")?.textContent).toContain("1 job selected");
  press(2);
  expect(ownCells.querySelector<HTMLElement>(".selection-bar")?.hidden).toBe(true);
  document.body.innerHTML = "";
  vi.unstubAllGlobals();
});

test("the selection offers fitting verbs and drops hidden rows", () => {
  const selection = new Selection(() => undefined);
  const rows = [job(1, "pending"), job(2, "running")];
  selection.show(rows);
  expect(selection.bar.hidden).toBe(true);
  selection.set(1, true);
  selection.set(2, true);
  selection.show(rows);
  expect([...selection.bar.querySelectorAll("button")].map((button) => [button.textContent, button.disabled])).toEqual([
    ["Hold (1)", false], ["Release (0)", true], ["Requeue… (1)", false], ["Retry (0)", true], ["Cancel…", false], ["Clear", false],
  ]);
  expect(selection.all.checked).toBe(true);
  selection.show([job(2)]);
  expect(selection.has(1)).toBe(false);
});

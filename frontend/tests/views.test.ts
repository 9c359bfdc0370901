// The views: the filter, the keys, links, bars.
import { beforeEach, expect, test, vi } from "vitest";
import { h, link } from "../src/ui/dom";
import { matches } from "../src/ui/filter";
import { startKeyboard } from "../src/ui/keyboard";
import type { Page } from "../src/live/regions";
import type { TopicState } from "../src/live/store";
import { overviewStrip } from "../src/pages/fleet/strip";
import { Selection } from "../src/pages/jobs/selection";
import { jobHead } from "../src/pages/job/job";
import { overviewAttention, overviewCounts, overviewWaiting } from "../src/pages/overview/overview";
import { bullet, jobLink, mib, nodeLinks, request } from "../src/ui/pieces";
import { overviewTenants } from "../src/pages/overview/tenants";
import type { JobRow, TenantRow } from "../src/live/topics";

const state = (rows: Record<string, object>): TopicState => ({ status: "ready", seq: 1, rows: new Map(Object.entries(rows)), error: null, hasRows: true });
let region: HTMLElement;

beforeEach(() => {
  region = document.createElement("section");
  document.body.replaceChildren(region);
});

test("links lead only into this site", () => {
  expect(link("javascript:alert(1)", "x").tagName).toBe("SPAN");
  expect(link("//evil.example", "x").tagName).toBe("SPAN");
  expect(link("/nodes/", "x").tagName).toBe("A");
});

test("a job name is shortened to 60 letters, with the full name as title", () => {
  const long = "🦙".repeat(61);
  expect([jobLink(7, long).textContent, jobLink(7, long).title]).toEqual([`${"🦙".repeat(59)}…`, long]);
  expect([jobLink(7, long.slice(2)).textContent, jobLink(7).textContent]).toEqual([long.slice(2), "7"]);
});

test("the strip without nodes shows the text of its template", () => {
  region.innerHTML = '<template><a href="/join/">Join a node</a></template>';
  overviewStrip(region, {} as Page).draw(state({}));
  expect(region.querySelector("a")?.getAttribute("href")).toBe("/join/");
});

test("a bullet bar shows used, borrowed, guarantee and limit on one scale", () => {
  const tenant: TenantRow = { name: "red", weight: 1, tier: "standard", gpus_held: 6, jobs_live: 1, jobs_waiting: 0, jobs_asking: 0, guaranteed_gpus: 4, max_gpus: 8, share: 1, usage_gpu_hours: 1 };
  const bar = bullet(tenant, 8);
  const style = (name: string): string => bar.querySelector<HTMLElement>(name)?.style.cssText ?? "";
  expect(style(".bar-used")).toContain("50");
  expect(style(".bar-borrowed")).toContain("25");
  expect(style(".bar-guaranteed")).toContain("50");
  expect(style(".bar-limit")).toContain("100");
  const view = overviewTenants(region, {} as Page);
  view.draw(state({ "tenant:red": { ...tenant, entitled_gpus: 4 } }));
  expect(region.textContent).toContain("2 borrowed");
  const share = (): string | undefined => region.querySelector('[data-label="Of its share"]')?.textContent;
  expect(share()).toBe("150 % of 4");
  view.draw(state({ "tenant:red": { ...tenant, entitled_gpus: null } }));
  expect(share(), "it asks for nothing").toBe("–");
});

test("under-guarantee needs jobs waiting for GPUs", () => {
  const tenant: TenantRow = { name: "red", weight: 1, tier: "standard", gpus_held: 1, jobs_live: 1, jobs_waiting: 3, jobs_asking: 0, guaranteed_gpus: 4, max_gpus: 8, share: 1, usage_gpu_hours: 1 };
  const tenants = (red: number, blue: number): TopicState =>
    state({ "tenant:red": { ...tenant, jobs_asking: red }, "tenant:blue": { ...tenant, name: "blue", gpus_held: 2, jobs_asking: blue } });
  const view = overviewTenants(region, {} as Page);
  const order = (): string[] => [...region.querySelectorAll("tbody tr a.tenant")].map((link) => link.textContent ?? "");
  view.draw(tenants(0, 0));
  expect([order(), region.querySelector(".is-starved")]).toEqual([["blue", "red"], null]);
  view.draw(tenants(1, 0));
  expect([order(), region.querySelectorAll(".is-starved").length]).toEqual([["red", "blue"], 1]);
});

test("lists are cut to the page, and the rest is counted and linked", () => {
  const trouble = (at: number): object => ({ kind: `k${at}`, severity: "red", count: 1, sentence: `trouble ${at}`, href: null, parts: [], more: 0 });
  const rows = Object.fromEntries(Array.from({ length: 9 }, (_, at) => [`attention:${at}`, trouble(at)]));
  const region = document.createElement("section");
  const view = overviewAttention(region, { hub: null as never });
  view.draw(state(rows));
  expect(region.querySelectorAll("li").length).toBe(8);
  expect(region.querySelector(".rest a")?.textContent).toBe("2 more problems");
  delete rows["attention:8"];
  view.draw(state(rows));
  expect([...region.querySelectorAll("li")].at(-1)?.textContent).toContain("trouble 7");
});

test("a redraw keeps the focus and a pressed button", () => {
  const focused = (selector: string): HTMLElement => {
    const element = region.querySelector<HTMLElement>(selector) as HTMLElement;
    element.focus();
    return element;
  };
  const status = { total_gpus: 8, busy_gpus: 1, online_nodes: 2, total_nodes: 2, running_jobs: 1, pending_jobs: 1, cycle_is_alive: true, oldest_wait_seconds: null, p90_wait_seconds: null };
  const counts = overviewCounts(region, {} as Page);
  counts.draw(state({ status }));
  const count = focused('a[href="/jobs/?state=running"]');
  counts.draw(state({ status: { ...status, running_jobs: 2 } }));
  expect([document.activeElement === count, count.textContent]).toEqual([true, "2jobs running"]);

  region.replaceChildren();
  const waiting = overviewWaiting(region, {} as Page);
  const row = (code: string, jobs: number): object => ({ code, jobs, gpus: jobs, example_id: null, example_sentence: "" });
  waiting.draw(state({ "waiting:a": row("quota", 9), "waiting:b": row("capacity", 1) }));
  const reason = focused('a[href$="capacity"]');
  waiting.draw(state({ status: { ...status, oldest_wait_seconds: 60 }, "waiting:b": row("capacity", 2) }));
  expect([document.activeElement === reason, region.querySelectorAll("li").length]).toEqual([true, 1]);
  waiting.close?.();

  region.replaceChildren();
  const head = jobHead(region, {} as Page);
  const job = { id: 7, tenant: "red", user: "ann", state: "pending", reason: { code: "quota", sentence: "no quota", next_step: "Wait." }, gpu_count: 1, devices: [], nodes: [], submitted_at: "2026-01-31T08:00:00Z", started_at: null, ended_at: null, exit_code: null, signal: null, attempt: 0, max_runtime_minutes: null };
  head.draw(state({ job }));
  const tenant = focused("a.tenant");
  head.draw(state({ job: { ...job, state: "running", reason: null, started_at: "2026-01-31T08:00:09Z" } }));
  expect([document.activeElement === tenant, region.querySelector(".next-step")]).toEqual([true, null]);

  const selection = new Selection(() => undefined);
  region.replaceChildren(selection.bar);
  selection.set(7, true);
  selection.show([job as unknown as JobRow]);
  const hold = focused("button");
  selection.show([job as unknown as JobRow, { ...job, id: 8 } as unknown as JobRow]);
  expect([document.activeElement === hold, hold.textContent]).toEqual([true, "Hold"]);
});

test("a request is formatted", () => {
  expect(request({ gpu_count: 0 })).toBe("CPU only");
  expect(request({ gpu_count: 1, gpu_model: "NVIDIA A100|NVIDIA H100", gpu_memory_mb: 81920 })).toBe("1 GPU A100 or H100 ≥ 80 GiB");
  expect(request({ gpu_count: 1, elements: 9990 })).toBe("9,990 × 1 GPU");
});

test("unknown values are n/a, and parts never round to none or all", () => {
  expect([null, 0, 512, 81920, 3 << 19].map(mib)).toEqual(["n/a", "0 MiB", "512 MiB", "80 GiB", "1.5 TiB"]);
  const status = { total_nodes: 9, online_nodes: 9, total_gpus: 1000, busy_gpus: 996, held_idle_gpus: 4, free_gpus: 0, unavailable_gpus: 1000, running_jobs: 1, pending_jobs: 0, cycle_is_alive: true };
  const view = overviewCounts(region, {} as Page);
  view.draw(state({ status }));
  expect([...region.querySelectorAll("b")].slice(0, 4).map((number) => number.textContent)).toEqual(["996 99 %", "4 < 1 %", "0", "1000 100 %"]);
  expect(region.querySelector("[role=alert]")).toBeNull();
  view.draw(state({ status: { ...status, cycle_is_alive: false } }));
  expect(region.querySelector("[role=alert]")?.textContent).toContain("The scheduler is not running");
});

test("more than three nodes are counted", () => {
  const text = (...names: string[]): string => h("p", {}, ...nodeLinks(names)).textContent;
  expect([text(), text("a", "b", "c"), text("a", "b", "c", "d", "e")]).toEqual(["–", "a, b, c", "a, b, c and 2 more"]);
});

test("the filter matches every word", () => {
  expect(matches("17 Train ann red", "ann tra")).toBe(true);
  expect(matches("17 Train ann red", "ann blue")).toBe(false);
});

test("shortcuts work, but not while typing", () => {
  const go = vi.fn();
  startKeyboard(go);
  document.body.innerHTML = '<main><input data-filter><table class="rows"><tbody><tr data-key="1" data-href="/jobs/1/"></tr><tr data-key="2" data-href="/jobs/2/"></tr><tr data-key="3"><td><a href="//evil.example">x</a></td></tr></tbody></table></main>';
  const press = (key: string, on: Element = document.activeElement ?? document.body): void => {
    on.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  };
  press("g");
  press("q");
  expect(go).toHaveBeenLastCalledWith("/queue/");
  press("j");
  press("j");
  press("Enter");
  expect(go).toHaveBeenLastCalledWith("/jobs/2/");
  press("j");
  press("j");
  press("Enter");
  expect(go, "never elsewhere").toHaveBeenLastCalledWith("/jobs/2/");
  press("k");
  press("k");
  press("Enter");
  expect(go).toHaveBeenLastCalledWith("/jobs/1/");
  press("/");
  expect(document.activeElement?.hasAttribute("data-filter")).toBe(true);
  const calls = go.mock.calls.length;
  press("g");
  press("n");
  expect(go.mock.calls.length).toBe(calls);
  press("Escape");
  expect(document.activeElement?.hasAttribute("data-filter")).toBe(false);
  document.body.innerHTML = '<nav class="rail"><a href="/jobs/">Jobs</a></nav><input data-filter>';
  const previous = go.mock.calls.length;
  for (const key of ["g", "s", "g", "j"]) press(key, document.body);
  expect(go.mock.calls.slice(previous), "pages that one has").toEqual([["/jobs/"]]);
  const slash = new KeyboardEvent("keydown", { key: "/", bubbles: true, cancelable: true });
  document.body.dispatchEvent(slash);
  expect([slash.defaultPrevented, document.activeElement?.tagName], "not typed into it").toEqual([true, "INPUT"]);
});

test("Escape closes a dialog first, then the panel", () => {
  const closed = vi.fn(() => document.querySelector<HTMLElement>("#map")?.focus());
  document.body.innerHTML = '<canvas id="map" tabindex="0"></canvas><aside data-fleet-panel><button data-does="close">x</button><details class="confirm" open><summary>Drain</summary></details></aside>';
  document.querySelector("button")?.addEventListener("click", closed);
  const press = (): boolean => document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true, cancelable: true }));
  press();
  expect([document.querySelector("details")?.open, closed.mock.calls.length]).toEqual([false, 0]);
  press();
  expect(closed).toHaveBeenCalled();
  expect(document.activeElement?.id).toBe("map");
});

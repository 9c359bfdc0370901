// Hidden tabs send no requests until shown; failed reloads are retried.
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
vi.mock("htmx.org", () => ({ default: { process: () => undefined } }));
import { whenVisible, deferHiddenRequests } from "../src/live/visibility";
import type { Page } from "../src/live/regions";
import { NOTHING } from "../src/live/store";
import { serverRegion } from "../src/live/server_region";

let isHidden = false;

function show(hidden: boolean): void {
  isHidden = hidden;
  document.dispatchEvent(new Event("visibilitychange"));
}

beforeEach(() => {
  vi.useFakeTimers();
  isHidden = false;
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe("periodic work", () => {
  test("runs once after its delay, or when a hidden tab is shown", () => {
    let runs = 0;
    const run = (): void => void (runs += 1);
    whenVisible(run, 1000);
    vi.advanceTimersByTime(1000);
    expect(runs).toBe(1);
    show(true);
    whenVisible(run, 1000);
    vi.advanceTimersByTime(100_000);
    expect(runs).toBe(1);
    show(false);
    show(true);
    show(false);
    expect(runs).toBe(2);
    show(true);
    const end = whenVisible(run, 1000);
    vi.advanceTimersByTime(1000);
    end();
    show(false);
    expect(runs).toBe(2);
  });

  test("polling elements are deferred while hidden and run once when shown", () => {
    deferHiddenRequests();
    const part = document.createElement("div");
    document.body.replaceChildren(part);
    let visible = 0;
    part.addEventListener("shown", () => (visible += 1));
    const ask = (verb: string): boolean => part.dispatchEvent(new CustomEvent("htmx:beforeRequest", { bubbles: true, cancelable: true, detail: { elt: part, requestConfig: { verb } } }));
    expect(ask("get")).toBe(true);
    show(true);
    expect([ask("get"), ask("get"), ask("post")]).toEqual([false, false, true]);
    show(false);
    expect([visible, ask("get")]).toEqual([1, true]);
  });
});

test("a failed reload is retried with backoff until it succeeds (A52)", async () => {
  document.body.innerHTML = "<section id='part'>old</section>";
  const answers = [new Response("", { status: 503 }), null, new Response("<section id='part'>new</section>")];
  const times: number[] = [];
  vi.stubGlobal("fetch", async () => {
    times.push(Date.now());
    const answer = answers.shift();
    if (answer == null) throw new TypeError("no network");
    return answer;
  });
  const part = document.getElementById("part") as HTMLElement;
  const view = serverRegion(part, {} as Page);
  view.draw({ ...NOTHING, hasRows: true, status: "ready" });
  await vi.advanceTimersByTimeAsync(60_000);
  expect(part.textContent).toBe("new");
  expect(times.length).toBe(3);
  expect((times[2] ?? 0) - (times[1] ?? 0)).toBeGreaterThan((times[1] ?? 0) - (times[0] ?? 0));
  view.close?.();
});

test("the answer for an earlier URL, such as another filter, is not applied", async () => {
  history.replaceState(null, "", "?state=failed");
  document.body.innerHTML = "<section id='part'>old</section>";
  const requests: string[] = [];
  const answers: ((response: Response) => void)[] = [];
  vi.stubGlobal("fetch", (url: string) => new Promise((resolve) => (requests.push(new URL(url).search), answers.push(resolve))));
  const part = document.getElementById("part") as HTMLElement;
  const view = serverRegion(part, {} as Page);
  view.draw({ ...NOTHING, hasRows: true, status: "ready" });
  history.replaceState(null, "", "?state=running");
  part.textContent = "running";
  answers[0]?.(new Response("<section id='part'>failed</section>"));
  await vi.advanceTimersByTimeAsync(100);
  expect(part.textContent).toBe("running");
  await vi.advanceTimersByTimeAsync(10_000);
  expect(requests).toEqual(["?state=failed", "?state=running"]);
  view.close?.();
  history.replaceState(null, "", location.pathname);
});

test("a region is reloaded without a change of its topic, while its page is visible", async () => {
  vi.resetModules();
  const module = await import("../src/live/server_region");
  document.body.innerHTML = "<section id='part'>no limit</section>";
  let requests = 0;
  vi.stubGlobal("fetch", async () => new Response(`<section id='part'>limit ${(requests += 1)}</section>`));
  const part = document.getElementById("part") as HTMLElement;
  const view = module.serverRegion(part, {} as Page);
  await vi.advanceTimersByTimeAsync(11_000);
  expect(part.textContent).toBe("limit 1");
  show(true);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(requests).toBe(1);
  show(false);
  await vi.advanceTimersByTimeAsync(10_000);
  expect(part.textContent).toBe("limit 2");
  view.close?.();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(requests).toBe(2);
});

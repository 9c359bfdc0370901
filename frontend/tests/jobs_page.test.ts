// The summary of the list of jobs.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Page } from "../src/live/regions";
import { jobs } from "../src/pages/jobs/jobs";

const row = (id: number, more: object = {}): object => ({ id, name: "", tenant: "red", user: "ann", state: "running", reason: null, gpu_count: 1, nodes: [], submitted_at: "2026-01-31T08:00:00Z", started_at: null, ended_at: null, ...more });
const sweep = (id: number, byState: object): object => row(id, { array: { count: 9, max_parallel: null, remaining: 2, by_state: byState } });
let listed: { items: object[]; next_cursor: string | null };
let total: object | null;
let counts: string[];

beforeEach(() => {
  counts = [];
  vi.stubGlobal("fetch", (address: string) => {
    if (!address.startsWith("/api/v1/jobs/count")) return Promise.resolve(new Response(JSON.stringify(listed)));
    counts.push(address);
    return Promise.resolve(total === null ? new Response("", { status: 503 }) : new Response(JSON.stringify(total)));
  });
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
  history.replaceState(null, "", location.pathname);
});

async function text(items: object[], cursor: string | null, count: object | null = null): Promise<string | null | undefined> {
  [listed, total] = [{ items, next_cursor: cursor }, count];
  const region = document.createElement("section");
  const view = jobs(region, {} as Page);
  await vi.waitFor(() => expect(region.querySelectorAll("tbody tr")).toHaveLength(items.length));
  if (cursor !== null) await vi.waitFor(() => expect(counts).toHaveLength(1));
  await Promise.resolve().then(() => new Promise((results) => setTimeout(results)));
  view.close?.();
  counts = [];
  return region.querySelector(".summary")?.textContent;
}

test("the summary counts jobs, and arrays with their elements", async () => {
  expect(await text([row(1)], null)).toBe("1 job.");
  expect(await text([row(2), sweep(1, { running: 4, completed: 5 })], null)).toBe("2 jobs; an array counts as one (10 with its elements).");
  history.replaceState(null, "", "?state=live");
  expect(await text([row(2), sweep(1, { running: 4, completed: 5 })], null)).toBe("2 jobs; an array counts as one (5 with its elements).");
});

test("the summary shows the server's total and its time", async () => {
  history.replaceState(null, "", "?state=running");
  expect(await text([row(2), sweep(1, {})], "x", { jobs: 159, is_more: false, with_elements: 4000 })).toBe("159 jobs, 2 of them listed; an array counts as one (4000 with its elements). Counted just now.");
  expect(await text([row(2), sweep(1, {})], "x", { jobs: 10000, is_more: true, with_elements: null })).toBe("At least 10000 jobs, 2 of them listed; an array counts as one. Counted just now.");
  // The array is among the older ones.
  expect(await text([row(2), row(1)], "x", { jobs: 121, is_more: false, with_elements: 145 })).toBe("121 jobs, 2 of them listed; an array counts as one (145 with its elements). Counted just now.");
  // Of a name only the newest are looked at: no fewer than are listed.
  expect(await text([row(2), row(1)], "x", { jobs: 0, is_more: true, with_elements: null })).toBe("At least 2 jobs, 2 of them listed. Counted just now.");
  expect(await text([row(2), row(1)], "x", null)).toBe("2 jobs, and older ones.");
});

test("the total is recounted after changes, throttled", async () => {
  [listed, total] = [{ items: [row(2)], next_cursor: "x" }, { jobs: 7, is_more: false, with_elements: 7 }];
  vi.useFakeTimers();
  const region = document.createElement("section");
  const view = jobs(region, {} as Page);
  await vi.advanceTimersByTimeAsync(10);
  expect(counts).toEqual(["/api/v1/jobs/count?"]);
  total = { jobs: 8, is_more: false, with_elements: 8 };
  for (const id of [3, 4]) view.draw({ known: true, rows: new Map([["2", row(2)], [String(id), row(id)]]) } as never);
  await vi.advanceTimersByTimeAsync(20_000);
  expect(counts).toHaveLength(2);
  expect(region.querySelector(".summary")?.textContent).toMatch(/^8 jobs/);
  view.close?.();
});

test("a failed load keeps the rows, and the next one works", async () => {
  [listed, total] = [{ items: [row(2)], next_cursor: "x" }, null];
  const region = document.createElement("section");
  const view = jobs(region, {} as Page);
  await vi.waitFor(() => expect(region.querySelectorAll("tbody tr")).toHaveLength(1));
  const older = [...region.querySelectorAll("button")].find((button) => button.textContent === "Show older jobs");
  const failures = [() => Promise.resolve(new Response("<html>", { status: 502 })), () => Promise.reject(new TypeError("Failed to fetch"))];
  for (const [at, words] of ["the server answered 502", "the server gave no answer"].entries()) {
    vi.stubGlobal("fetch", failures[at]);
    older?.click();
    await vi.waitFor(() => expect(region.textContent).toContain(`The list could not be updated: ${words}.`));
    expect(region.querySelectorAll("tbody tr")).toHaveLength(1);
  }
  vi.stubGlobal("fetch", () => Promise.resolve(new Response(JSON.stringify({ items: [row(1)], next_cursor: null }))));
  older?.click();
  await vi.waitFor(() => expect(region.querySelectorAll("tbody tr")).toHaveLength(2));
  expect(region.textContent).not.toContain("could not be updated");
  view.close?.();
});

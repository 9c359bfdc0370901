// The job page: attempts and waits on one axis, readings as charts, undo.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Page } from "../src/live/regions";
import type { TopicState } from "../src/live/store";
import type { AttemptRow } from "../src/live/topics";
import { UNDO_MS, startUndo } from "../src/actions/undo";
import { chartOf, type Readings } from "../src/pages/job/gpus";
import { jobTimeline, spans, waited } from "../src/pages/job/timeline";

const at = (iso: string): number => Date.parse(iso);
const from = at("2026-01-31T08:00:00Z");
const attempt = (more: Partial<AttemptRow> = {}): AttemptRow => ({
  number: 1, state: "running", reason: null, sentence: null, exit_code: null, signal: null, scheduled_at: "2026-01-31T08:01:00Z",
  started_at: "2026-01-31T08:01:10Z", ended_at: null, ranks: [], ...more,
});

test("spans of an attempt reach to now while open", () => {
  expect(spans(attempt(), from + 120_000)).toEqual([
    { kind: "waiting", words: "starting", from: from + 60_000, to: from + 70_000 },
    { kind: "running", words: "running", from: from + 70_000, to: from + 120_000 },
  ]);
});

test("waits are grouped, and the current one reaches to now", () => {
  const waits = [
    { code: "quota_wait", since_at: "2026-01-31T08:00:00Z", until_at: "2026-01-31T08:00:30Z" },
    { code: "held_by_user", since_at: "2026-01-31T08:00:30Z", until_at: null },
  ];
  expect(waited(waits, from + 60_000).map(({ kind, from: a, to }) => [kind, (to - a) / 1000])).toEqual([["wait-on-quota for-quota_wait", 30], ["wait-on-held for-held_by_user", 30]]);
});

test("waits and attempts share one axis", () => {
  const region = document.createElement("section");
  const waits = { periods: [{ code: "capacity", since_at: "2026-01-31T08:00:00Z", until_at: "2026-01-31T08:01:00Z" }] };
  const state: TopicState = { status: "ready", seq: 1, rows: new Map<string, object>([["waits", waits], ["attempt:1", attempt({ ended_at: "2026-01-31T08:02:00Z" })]]), error: null, hasRows: true };
  jobTimeline(region, {} as Page).draw(state);
  const parts = [...region.querySelectorAll<HTMLElement>(".axis > span")].map((part) => [part.className, part.style.left, part.style.width]);
  expect(parts).toEqual([["wait-on-capacity for-capacity", "0.00%", "50.00%"], ["axis-waiting", "50.00%", "8.33%"], ["axis-running", "58.33%", "41.67%"]]);
  expect(region.textContent).toContain("mostly: capacity");
  expect(region.querySelector(".wait-legend")?.textContent).toBe("capacity 1 min");
});

test("readings become charts in their units, unknown ones stay unknown", () => {
  const readings: Readings = {
    attempt: 1, from: 0, until: 60, is_live: false, step: 15, gpus: 1,
    devices: [{ rank: 0, node: "n1", index: 3, model: "A100", memory_mb: 81920, times: [0, 15], utilisation_percent: [50, null], memory_used_mb: [2048, 4096], temperature_celsius: [null, null], power_watts: [300, 310] }],
  };
  const [device] = readings.devices;
  const memory = chartOf(readings, device!, { name: "memory_used_mb", label: "Memory", unit: "GiB", scale: (value) => value / 1024, axisTop: () => 80 });
  expect(memory.label).toBe("n1 GPU 3 memory");
  expect(memory.lines[0]?.values).toEqual([2, 4]);
  const use = chartOf(readings, device!, { name: "utilisation_percent", label: "Utilisation", unit: "%", scale: (value) => value, axisTop: () => 100 });
  expect([use.lines[0]?.values, use.from, use.until, use.axisTop]).toEqual([[50, null], 0, 60, 100]);
});

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test("an undoable request is sent after a delay, and never if undone", () => {
  startUndo();
  const sent = vi.fn((event: Event) => event.preventDefault());
  document.body.innerHTML = '<form data-undo="Job 7 will be cancelled" action="/jobs/7/cancel/"><button>Cancel</button></form>';
  const form = document.querySelector("form") as HTMLFormElement;
  form.addEventListener("submit", sent);
  const press = (word: string): void => [...document.querySelectorAll("button")].find((button) => button.textContent === word)?.click();
  press("Cancel");
  expect(document.querySelector(".toast")?.textContent).toContain("Job 7 will be cancelled in 5 s.");
  press("Undo");
  vi.advanceTimersByTime(2 * UNDO_MS);
  expect(sent).not.toHaveBeenCalled();
  press("Cancel");
  vi.advanceTimersByTime(UNDO_MS);
  expect(sent).toHaveBeenCalledOnce();
  expect(document.querySelector(".toast")).toBeNull();
});

test("a double submit is sent once, and Undo restores the focus", () => {
  const sent = vi.fn((event: Event) => event.preventDefault());
  document.body.innerHTML = '<main tabindex="-1"><form data-undo="Job 7 will be cancelled" action="/jobs/7/cancel/"><button>Cancel</button></form></main>';
  document.querySelector("form")?.addEventListener("submit", sent);
  const find = (word: string): HTMLButtonElement => [...document.querySelectorAll("button")].find((button) => button.textContent === word) as HTMLButtonElement;
  const cancel = find("Cancel");
  cancel.focus();
  cancel.click();
  cancel.click();
  expect([document.querySelectorAll(".toast").length, document.activeElement?.textContent]).toEqual([1, "Undo"]);
  find("Undo").click();
  vi.advanceTimersByTime(2 * UNDO_MS);
  expect([sent.mock.calls.length, document.activeElement]).toEqual([0, cancel]);
  cancel.click();
  vi.advanceTimersByTime(UNDO_MS);
  expect([sent.mock.calls.length, document.activeElement]).toEqual([1, cancel]);
  // What is gone meanwhile cannot have it.
  cancel.click();
  document.querySelector("form")?.remove();
  find("Undo").click();
  expect(document.activeElement?.tagName).toBe("MAIN");
});

// What was asked for: "requested…" until the rows show it, whatever else changes in them; never pressed twice.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { standing } from "../src/asked";
import { startConfirm } from "../src/confirm";
import type { Hub } from "../src/hub";
import { NOTHING, type TopicState } from "../src/store";

const rows = (of: Record<string, object>): Map<string, object> => new Map(Object.entries(of));
const job = (state: string, more: object = {}): Map<string, object> => rows({ job: { id: 7, state, attempt: 1, nodes: ["n1"], max_runtime_minutes: 60, ...more } });

test.each([
  ["/jobs/7/hold/", job("pending"), job("held"), "confirmed"],
  ["/jobs/7/release/", job("held"), job("pending"), "confirmed"],
  ["/jobs/7/cancel/", job("pending", { nodes: [] }), job("cancelled", { nodes: [] }), "confirmed"],
  ["/jobs/7/cancel/", job("running"), job("cancelled"), "confirmed by n1"],
  ["/jobs/7/requeue/", job("running"), job("pending"), "confirmed by n1"],
  ["/jobs/7/retry/", job("failed"), job("pending"), "confirmed"],
  ["/jobs/7/extend/", job("running"), job("running", { max_runtime_minutes: 90 }), "confirmed"],
  ["/nodes/n1/cordon/", rows({ node: { intent: "open" } }), rows({ node: { intent: "cordoned" } }), "confirmed"],
  ["/nodes/n1/drain/", rows({ node: { intent: "open" } }), rows({ node: { intent: "draining" } }), "confirmed"],
  ["/nodes/n1/uncordon/", rows({ node: { intent: "draining" } }), rows({ node: { intent: "open" } }), "confirmed"],
  ["/nodes/n1/gpus/3/quarantine/", rows({ "device:3": { health: "ok" } }), rows({ "device:3": { health: "quarantined" } }), "confirmed"],
  ["/nodes/n1/gpus/3/clear/", rows({ "device:3": { health: "quarantined" } }), rows({ "device:3": { health: "ok" } }), "confirmed"],
  ["/nodes/n1/gpus/3/retire/", rows({ "device:3": { health: "lost" } }), rows({}), "confirmed"],
])("%s is confirmed by what it asked for, and by nothing else", (action, before, after, words) => {
  expect(standing(action, before, before).done).toBeNull();
  expect(standing(action, before, after).done).toBe(words);
});

test("a cancel is not confirmed while its processes are being stopped", () => {
  expect(standing("/jobs/7/cancel/", job("running"), job("stopping"))).toEqual({ done: null, now: "its processes are being stopped" });
});

let say: (of: Map<string, object>) => void;
let button: HTMLButtonElement;

beforeEach(() => {
  vi.useFakeTimers();
  let now: TopicState = { ...NOTHING, status: "ready", known: true, rows: job("running") };
  const listeners = new Set<(state: TopicState) => void>();
  say = (of) => {
    now = { ...now, rows: of };
    listeners.forEach((each) => each(now));
  };
  const hub = { state: () => now, listen: (_: string, one: (state: TopicState) => void) => (listeners.add(one), () => void listeners.delete(one)) };
  document.body.innerHTML = '<form method="post" action="/jobs/7/cancel/" data-confirmed-by="job:7"><button>Cancel the job</button></form>';
  button = document.querySelector("button") as HTMLButtonElement;
  startConfirm(hub as unknown as Hub);
  document.querySelector("form")?.addEventListener("submit", (event) => event.preventDefault());
  button.click();
  vi.advanceTimersByTime(1);
});
afterEach(() => void vi.useRealTimers());

test("other news of the job do not let the button be pressed again", () => {
  say(job("running", { reason: "another sentence" }));
  expect([button.disabled, button.textContent]).toEqual([true, "requested…"]);
  say(job("stopping"));
  expect([button.disabled, button.textContent]).toEqual([true, "requested…"]);
  say(job("cancelled"));
  expect([button.disabled, button.textContent]).toEqual([true, "confirmed by n1"]);
});

test("after half a minute it says that it is not so yet, and why; it is confirmed later all the same", () => {
  say(job("stopping"));
  vi.advanceTimersByTime(31_000);
  expect([button.disabled, button.textContent]).toEqual([true, "not confirmed yet: its processes are being stopped"]);
  say(job("cancelled"));
  expect(button.textContent).toBe("confirmed by n1");
});

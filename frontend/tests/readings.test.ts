// The charts of recorded readings: of the chosen attempt of a job, and of the last hours of a node.
import { afterEach, expect, test, vi } from "vitest";
import type { Page } from "../src/live/regions";
import type { TopicState } from "../src/live/store";
import { jobGpus } from "../src/pages/job/gpus";
import { nodeReadings } from "../src/pages/node/node";
import { learnServerTime } from "../src/ui/time";

const state = (rows: Record<string, object>): TopicState => ({ status: "ready", seq: 1, rows: new Map(Object.entries(rows)), error: null, hasRows: true });

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
  learnServerTime(new Date().toISOString());
});

test("readings of an attempt that is no longer chosen are not drawn", async () => {
  const answers = new Map<string, (response: Response) => void>();
  vi.stubGlobal("fetch", (url: string) => new Promise((resolve) => answers.set(url, resolve)));
  const answer = (attempt: number): void => answers.get(`/jobs/7/readings/?attempt=${attempt}`)?.(new Response(JSON.stringify({ attempt, from: 0, until: 1, is_live: false, step: 10, gpus: 0, devices: attempt === 1 ? [] : [{ rank: 0, node: "gpu-1", index: 0, model: "H100", memory_mb: null, times: [], utilisation_percent: [], memory_used_mb: [], temperature_celsius: [], power_watts: [] }] })));
  const region = document.createElement("section");
  region.dataset.live = "job:7";
  const view = jobGpus(region, {} as Page);
  view.draw(state({ "attempt:1": { number: 1 }, "attempt:2": { number: 2 } }));
  const chooser = region.querySelector("select") as HTMLSelectElement;
  chooser.value = "1";
  chooser.dispatchEvent(new Event("change"));
  answer(1);
  await vi.waitFor(() => expect(region.textContent).toContain("This attempt had no GPU."));
  answer(2);
  await new Promise((resolve) => setTimeout(resolve));
  expect(region.textContent).toContain("This attempt had no GPU.");
  view.close?.();
});

test("readings that cannot be loaded name the reason", async () => {
  const region = document.createElement("section");
  region.dataset.live = "job:7";
  for (const [answer, words] of [[() => Promise.reject(new TypeError("Failed to fetch")), "the server gave no answer"], [() => Promise.resolve({ ok: false, type: "opaqueredirect" }), "you are logged out"]] as const) {
    vi.stubGlobal("fetch", answer);
    const view = jobGpus(region, {} as Page);
    view.draw(state({ "attempt:1": { number: 1 } }));
    await vi.waitFor(() => expect(region.textContent).toContain(`The readings could not be loaded: ${words}.`));
    view.close?.();
  }
});

test("the hours of a node are the server's, whatever this machine's clock shows", async () => {
  vi.useFakeTimers({ now: Date.parse("2030-01-05T00:00:00Z") });
  learnServerTime("2030-01-03T12:00:00Z");
  const requests: string[] = [];
  vi.stubGlobal("fetch", async (url: string) => (requests.push(url), new Response(JSON.stringify({ items: [], next_cursor: null }))));
  const region = document.createElement("section");
  Object.assign(region.dataset, { gpus: '[{"id": 3, "index": 0}]', hours: "24" });
  nodeReadings(region, {} as Page).draw(state({}));
  await vi.advanceTimersByTimeAsync(0);
  expect(new URL(requests[0] ?? "", location.href).searchParams.get("since")).toBe("2030-01-02T12:00:00.000Z");
});

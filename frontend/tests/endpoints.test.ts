// The views of the Endpoints pages, and the form that tries one.
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Hub } from "../src/live/hub";
import type { MakeView } from "../src/live/regions";
import { NOTHING, type TopicState } from "../src/live/store";
import { batches, costs, head, list, prewarmed, replicas, sizes } from "../src/pages/endpoints/endpoints";
import { list as lazyList } from "../src/pages/endpoints/lazy";
import type { BatchRow, EndpointRow, ReplicaRow } from "../src/pages/endpoints/rows";
import { latency } from "../src/pages/endpoints/rows";
import { pretty } from "../src/pages/endpoints/result";
import { type Task, resultOf, tryOnce } from "../src/pages/endpoints/try";

const ENDPOINT: EndpointRow = {
  name: "embed", tenant: "nlp", state: "active", type: "embedding", protocol: "batch", problem: "", max_queue: 1000, max_replicas: 2,
  cold_start_seconds: 3.71, prewarming: true, is_kept_warm: false, is_over_budget: false, request_chance: null, keep_from_chance: null, prewarming_hits: 0, prewarming_misses: 0, cold_starts_avoided: 0,
  gpu_hours_wasted: 0, queued: 0, oldest_at: null, running: 0, replicas: 0, warm: 0, p50_seconds: null, p95_seconds: null, p99_seconds: null,
  completed: 0, failed: 0, expired: 0, cancelled: 0, refused: 0, cost: 0, cost_users: 0, costs: [],
};
const REPLICA: ReplicaRow = { job_id: 7, job_state: "running", created_at: "2026-01-31T08:00:00Z", warm_at: null, is_draining: false, cold_start_seconds: null, running: 0, used_at: null };

const state = (rows: Record<string, object>): TopicState => ({ ...NOTHING, status: "ready", hasRows: true, rows: new Map(Object.entries(rows)) });

function drawn(make: MakeView, rows: Record<string, object>, inner = ""): HTMLElement {
  const region = document.createElement("section");
  region.innerHTML = inner;
  document.body.replaceChildren(region);
  make(region, { hub: {} as Hub }).draw(state(rows));
  return region;
}

const texts = (region: Element, selector: string): string[] => [...region.querySelectorAll(selector)].map((each) => each.textContent ?? "");

describe("numbers", () => {
  it.each([[0.0004, "0.4 ms"], [0.0099, "9.9 ms"], [0.0104, "10 ms"], [0.9994, "999 ms"], [0.9999, "1 s"], [1.254, "1.25 s"], [12.6, "13 s"], [1800, "1,800 s"]])("writes %d s as %s", (seconds, text) => {
    expect(latency(seconds)).toBe(text);
  });

  it.each([[1, 1, "1"], [2, 2, "2"], [3, 4, "3–4"]])("writes sizes %d to %d", (from, to, text) => expect(sizes({ from, to })).toBe(text));
});

describe("pre-warming", () => {
  it("tells its state and its figures", () => {
    expect(prewarmed({ ...ENDPOINT, prewarming: false })).toBe("Pre-warming is off.");
    expect(prewarmed(ENDPOINT)).toBe("Pre-warming learns from the times of requests.");
    const row = { ...ENDPOINT, prewarming_hits: 12, prewarming_misses: 3, cold_starts_avoided: 8, gpu_hours_wasted: 0.42, is_kept_warm: true, request_chance: 0.35, keep_from_chance: 0.05 };
    expect(prewarmed(row)).toBe("Pre-warming keeps a replica warm now: a request within the next minute is 35 % likely, and a replica is worth keeping from 5 %. Of 15 requests after a pause, 12 met a warm replica: 8 cold starts avoided, 0.4 GPU-hours wasted in six weeks.");
    expect(prewarmed({ ...row, is_kept_warm: false, request_chance: 0.01 })).toContain("keeps no replica now: a request within the next minute is 1 % likely, and");
    expect(prewarmed({ ...row, is_kept_warm: false, request_chance: null, keep_from_chance: null })).toContain("has too little history");
    expect(prewarmed({ ...row, is_over_budget: true })).toContain("is off: its budget is used up");
  });
});

describe("list", () => {
  it("shows the load of each endpoint, ordered by tenant and name", () => {
    const busy = { ...ENDPOINT, tenant: "a", name: "z", queued: 1200, running: 3, replicas: 3, warm: 2, p50_seconds: 0.012, p95_seconds: 0.4, p99_seconds: 2, cost: 1234.5, cost_users: 5, costs: [["ada", 900], ["bea", 300]] };
    const region = drawn(list, { 1: ENDPOINT, 2: busy });
    expect(texts(region, "td.name")).toEqual(["z", "embed"]);
    const [first] = region.querySelectorAll("tbody tr");
    const cell = (label: string): string => first?.querySelector(`[data-label="${label}"]`)?.textContent ?? "";
    expect([cell("Waiting"), cell("In progress"), cell("Replicas"), cell("p50"), cell("p99")]).toEqual(["1,200 of 1,000", "3", "2 warm, 1 cold of 2", "12 ms", "2 s"]);
    expect(cell("Cost, 24 h")).toBe("1,234.5ada 900, bea 300, 3 more");
    expect((first as HTMLElement).dataset.href).toBe("/endpoints/a/z/");
  });

  it("marks an endpoint whose replicas fail, with the reason", () => {
    const region = drawn(list, { 1: { ...ENDPOINT, problem: "the tenant has no quota left" } });
    expect(region.querySelector("[data-label=State] .state-amber")?.textContent).toContain("replicas fail");
    expect(region.textContent).toContain("the tenant has no quota left");
  });

  it("shows unknown latencies as n/a and never as 0", () => {
    expect(texts(drawn(list, { 1: ENDPOINT }), ".na")).toEqual(["n/a", "n/a", "n/a"]);
  });

  it("shows the empty state, and again when the last endpoint is removed", () => {
    const region = document.createElement("section");
    region.innerHTML = "<template><p>No endpoint</p></template>";
    const view = list(region, { hub: {} as Hub });
    view.draw(state({}));
    expect(region.textContent).toBe("No endpoint");
    view.draw(state({ 1: ENDPOINT }));
    expect(region.textContent).not.toContain("No endpoint");
    view.draw(state({}));
    expect(region.textContent).toBe("No endpoint");
  });

  it("draws the latest rows once its code is loaded", async () => {
    const region = document.createElement("section");
    const view = lazyList(region, { hub: {} as Hub });
    view.draw(state({ 1: ENDPOINT }));
    view.draw(state({ 1: { ...ENDPOINT, name: "later" } }));
    await vi.waitFor(() => expect(texts(region, "td.name")).toEqual(["later"]));
  });
});

describe("one endpoint", () => {
  it("shows its load, and how requests ended", () => {
    const region = drawn(head, { endpoint: { ...ENDPOINT, queued: 5, replicas: 3, warm: 1, completed: 10, expired: 2, p50_seconds: 0.2 } });
    expect(texts(region, ".count b").slice(0, 6)).toEqual(["5of 1,000", "–", "0", "1of 2", "2", "3.71 s"]);
    expect(region.textContent).toContain("10 completed, 2 expired");
  });

  it("shows that nothing ended lately, and why a replica could not start", () => {
    const region = drawn(head, { endpoint: { ...ENDPOINT, problem: "no quota" } });
    expect(region.textContent).toContain("No request ended lately.");
    expect(region.querySelector(".note")?.textContent).toBe("A replica could not start: no quota.");
  });

  it("links the replica that failed", () => {
    const problem = "job 7, its latest replica, ended before it accepted requests: it exited with code 1";
    const region = drawn(head, { endpoint: { ...ENDPOINT, problem } });
    const note = region.querySelector(".note");
    expect(note?.textContent).toBe(`A replica could not start: ${problem}.`);
    expect(note?.querySelector("a")?.getAttribute("href")).toBe("/jobs/7/");
  });

  it("draws batches by size, with a part of the bar for each reason", () => {
    const rows: Record<string, BatchRow> = { "batch:16": { from: 9, to: 16, reasons: { wait: 10, size: 30 } }, "batch:1": { from: 1, to: 1, reasons: { idle: 20 } } };
    const region = drawn(batches, rows);
    expect(texts(region, "td.title")).toEqual(["1", "9–16"]);
    const bars = [...region.querySelectorAll(".flush-bar")].map((bar) => [...bar.children].map((part) => `${part.className} ${(part as HTMLElement).style.width}`));
    expect(bars).toEqual([["flush-idle 50.00%"], ["flush-size 75.00%", "flush-wait 25.00%"]]);
    expect(texts(region, "td:last-child")).toEqual(["idle 20 ", "size 30 wait 10 "]);
  });

  it("redraws all bars when the longest one changes", () => {
    const region = document.createElement("div");
    document.body.replaceChildren(region);
    const view = batches(region, { hub: {} as Hub });
    const one: BatchRow = { from: 1, to: 1, reasons: { idle: 20 } };
    view.draw(state({ "batch:1": one }));
    view.draw(state({ "batch:1": one, "batch:2": { from: 2, to: 2, reasons: { size: 80 } } }));
    expect(region.querySelector<HTMLElement>(".flush-idle")?.style.width).toBe("25.00%");
  });

  it.each<[Partial<ReplicaRow>, string]>([
    [{ job_state: "pending" }, "cold, job waits"],
    [{}, "cold, starts"],
    [{ warm_at: "2026-01-31T08:00:03Z" }, "warm, idle"],
    [{ warm_at: "2026-01-31T08:00:03Z", running: 2 }, "warm, 2 requests"],
    [{ is_draining: true }, "stops"],
  ])("describes a replica (%o) as %s", (changes, words) => {
    const region = drawn(replicas, { "replica:7": { ...REPLICA, ...changes } });
    expect(region.querySelector("[data-label=State]")?.textContent).toContain(words);
    expect(region.querySelector("a")?.getAttribute("href")).toBe("/jobs/7/");
  });

  it("shows the users with the highest cost, and counts the others", () => {
    const region = drawn(costs, { endpoint: { ...ENDPOINT, cost: 60, cost_users: 4 }, "user:ada": { user: "ada", cost: 10, requests: 1 }, "user:bea": { user: "bea", cost: 20, requests: 2 } });
    expect(texts(region, "td.title")).toEqual(["bea", "ada"]);
    expect(region.textContent).toContain("2 more users; all together 60.");
  });

  it("explains empty parts", () => {
    expect(drawn(batches, {}).textContent).toBe("No batch ended lately.");
    expect(drawn(replicas, { endpoint: ENDPOINT }).textContent).toBe("No replica runs. The next request starts one.");
    expect(drawn(replicas, { endpoint: { ...ENDPOINT, state: "draining" } }).textContent).toBe("No replica runs.");
    expect(drawn(costs, { endpoint: ENDPOINT }).textContent).toContain("No request was completed");
  });
});

const TASK: Task = { id: 5, state: "completed", output: [1, 2], output_type: "application/json", error_code: "", error: "", batch_size: 4, flush_reason: "wait", queued_at: "2026-01-31T08:00:00.000Z", ended_at: "2026-01-31T08:00:00.120Z" };

describe("try it", () => {
  let form: HTMLFormElement;
  const asked = vi.fn<typeof fetch>();
  const result = (): string => document.querySelector("[data-try-result]")?.textContent ?? "";
  const answer = (status: number, body: object, headers: Record<string, string> = {}): void => void asked.mockResolvedValue(new Response(JSON.stringify(body), { status, headers }));

  beforeEach(() => {
    document.body.innerHTML = `<section><form data-try="batch" data-endpoint="embed" data-tenant="nlp"><input name="csrfmiddlewaretoken" value="t0"><textarea name="input">12345678901234567890</textarea><button>Send</button></form><div data-try-result></div></section>`;
    form = document.querySelector("form") as HTMLFormElement;
    asked.mockReset();
    vi.stubGlobal("fetch", asked);
  });
  afterEach(() => vi.unstubAllGlobals());

  it("sends the text of the input unchanged, and shows the result with its batch and time", async () => {
    answer(201, { items: [TASK], queued: 0 });
    await tryOnce(form);
    const [address, options] = asked.mock.calls[0] ?? [];
    expect(address).toBe("/api/v1/tasks?wait=60");
    expect(options?.body).toBe('{"endpoint":"embed","tenant":"nlp","input":12345678901234567890}');
    expect((options?.headers as Record<string, string>)["X-CSRFToken"]).toBe("t0");
    expect(result()).toContain("[1, 2]");
    expect(result()).toContain("Task 5: in a batch of 4, flushed because of wait, 120 ms from submit to result.");
    expect(form.querySelector("button")?.hasAttribute("aria-disabled")).toBe(false);
  });

  it("sends nothing that is not JSON", async () => {
    (form.elements.namedItem("input") as HTMLTextAreaElement).value = '1, "units": 100';
    await tryOnce(form);
    expect(asked).not.toHaveBeenCalled();
    expect(result()).toContain("The input is not JSON");
  });

  it("shows a refusal in the server's words", async () => {
    answer(429, { code: "queue_full", detail: "endpoint 'embed' has 1000 queued requests", next_step: "wait for the seconds in Retry-After", errors: [] }, { "Retry-After": "1" });
    await tryOnce(form);
    expect(result()).toContain("429 queue_full: endpoint 'embed' has 1000 queued requests");
    expect(result()).toContain("wait for the seconds in Retry-After. Retry-After: 1 s");
  });

  it("shows a lost connection and can be sent again", async () => {
    asked.mockRejectedValueOnce(new TypeError("failed"));
    await tryOnce(form);
    expect(result()).toContain("the server gave no answer");
    answer(201, { items: [TASK], queued: 0 });
    await tryOnce(form);
    expect(result()).toContain("[1, 2]");
  });

  it("ignores a second press while it waits", async () => {
    answer(201, { items: [TASK], queued: 0 });
    await Promise.all([tryOnce(form), tryOnce(form)]);
    expect(asked).toHaveBeenCalledTimes(1);
  });

  const textOf = (task: Partial<Task>): string => {
    const box = document.createElement("div");
    box.append(...(resultOf({ ...TASK, ...task }) as Node[]));
    return box.textContent ?? "";
  };

  it("shows tasks that failed or still wait, and links to results that are no JSON", () => {
    expect(textOf({ state: "failed", error_code: "out_of_memory", error: "CUDA" })).toContain("Task 5 is failed: out_of_memory: CUDA");
    expect(textOf({ state: "queued", ended_at: null })).toContain("Task 5 is still queued after 60 s");
    expect(textOf({ output_type: "image/png", output: null })).toContain("Download the result (image/png)");
  });

  it("writes lists of plain values on one line", () => {
    expect(pretty({ a: [1, "x", null], b: [{ c: 1 }], d: {}, e: [] })).toBe('{\n  "a": [1, "x", null],\n  "b": [\n    {\n      "c": 1\n    }\n  ],\n  "d": {},\n  "e": []\n}');
  });

  const prompt = async (kind: string, response: Response): Promise<void> => {
    form.dataset.try = kind;
    (form.elements.namedItem("input") as HTMLTextAreaElement).value = "count to 3";
    asked.mockResolvedValue(response);
    await tryOnce(form);
  };
  const stream = (...parts: string[]): Response => {
    const bytes = new ReadableStream<Uint8Array>({
      start(controller) {
        for (const part of parts) controller.enqueue(new TextEncoder().encode(part));
        controller.close();
      },
    });
    return new Response(bytes, { headers: { "Content-Type": "text/event-stream", "X-Replica-Job": "7" } });
  };
  const chunk = (text: string): string => `data: ${JSON.stringify({ choices: [{ delta: { content: text } }] })}\n\n`;

  it("shows a chat as it arrives, also if events are cut anywhere", async () => {
    const [one, two] = [chunk("one "), chunk("two ü")];
    await prompt("chat", stream(one.slice(0, 9), one.slice(9) + two.slice(0, -1), "\ndata: [DONE]\n\n"));
    expect(asked.mock.calls[0]?.[0]).toBe("/v1/chat/completions");
    const body = JSON.parse(String(asked.mock.calls[0]?.[1]?.body)) as object;
    expect(body).toEqual({ model: "nlp/embed", messages: [{ role: "user", content: "count to 3" }], stream: true });
    expect(document.querySelector("[data-try-result] pre")?.textContent).toBe("one two ü");
    expect(result()).toContain("Answered by job 7, first text after");
  });

  it("keeps the text of a chat that breaks off, and shows it", async () => {
    await prompt("chat", stream(chunk("one ")));
    expect(result()).toContain("one ");
    expect(result()).toContain("The answer broke off");
  });

  it("shows an error in the stream, and one instead of it", async () => {
    await prompt("chat", stream(chunk("one "), 'data: {"error": {"message": "the replica broke"}}\n\n'));
    expect(result()).toContain("the replica broke");
    await prompt("chat", new Response(JSON.stringify({ error: { message: "no such model", code: "model_not_found" } }), { status: 404 }));
    expect(result()).toContain("404 model_not_found: no such model");
  });

  it("shows an embedding on one line", async () => {
    await prompt("embedding", new Response(JSON.stringify({ data: [{ embedding: [0.5, 1] }] }), { headers: { "Content-Type": "application/json" } }));
    expect(asked.mock.calls[0]?.[0]).toBe("/v1/embeddings");
    expect(document.querySelector("[data-try-result] pre")?.textContent).toBe("[0.5, 1]");
  });
});

// Polling without a WebSocket: starts after a while, ends with a socket.
import { beforeEach, expect, test, vi } from "vitest";
import { Hub } from "../src/live/hub";
import { TIMEOUT_MS, POLL_MS, Polling } from "../src/live/polling";
import type { SocketLike } from "../src/live/socket";

class Deaf implements SocketLike {
  readyState = 0;
  onopen: ((event: Event) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;
  onmessage: ((event: MessageEvent) => void) | null = null;
  send(): void {}
  close(): void {}
}

let socket: Deaf;
let hub: Hub;
let polling: Polling;
let now: number;
let requests: string[];
let answer: { status: number; body: object };
let visible: string[];

beforeEach(() => {
  now = 0;
  requests = [];
  visible = [];
  answer = { status: 200, body: { alive: "2026-01-31T08:00:00Z", cycle_age_seconds: 1, topics: { jobs: { "1": {} } }, errors: { "job:9": "not_found" } } };
  vi.stubGlobal("fetch", async (url: string) => (requests.push(url), new Response(JSON.stringify(answer.body), { status: answer.status })));
  hub = new Hub(() => (socket = new Deaf()), (run) => run(), () => now);
  polling = new Polling(hub, () => now);
  hub.listen("jobs", (state) => visible.push([...state.rows.keys()].join()));
  hub.listen("job:9", (state) => visible.push(state.error ?? ""));
  hub.start();
});

const after = async (ms: number): Promise<void> => {
  now += ms;
  await polling.tick();
};

test("polls every few seconds after a while without socket", async () => {
  await after(0);
  await after(TIMEOUT_MS - 1);
  expect(requests).toEqual([]);
  await after(1);
  expect(requests).toEqual(["/live/?topic=job%3A9&topic=jobs"]);
  await after(POLL_MS - 1);
  expect(requests.length).toBe(1);
  await after(1);
  expect(requests.length).toBe(2);
  expect(visible).toContain("1");
  expect(visible).toContain("not_found");
  expect(hub.heard.polledAt).toBe(now);
});

test("a late socket ends polling, and its snapshot wins", async () => {
  await after(0);
  await after(TIMEOUT_MS);
  socket.readyState = 1;
  socket.onopen?.(new Event("open"));
  expect([hub.heard.polledAt, hub.state("jobs").status]).toEqual([null, "waiting"]);
  await after(TIMEOUT_MS * 2);
  expect(requests.length).toBe(1);
});

test("a poll answer after the socket opened is ignored", async () => {
  await after(0);
  const late = after(TIMEOUT_MS);
  socket.readyState = 1;
  socket.onopen?.(new Event("open"));
  await late;
  expect([hub.heard.polledAt, hub.state("jobs").rows.size, hub.state("job:9").error]).toEqual([null, 0, null]);
});

test("a logout is shown and ends polling", async () => {
  vi.stubGlobal("fetch", async (url: string) => (requests.push(url), { type: "opaqueredirect", ok: false, status: 0 }));
  await after(0);
  await after(TIMEOUT_MS);
  expect(hub.heard.isLoggedOut).toBe(true);
  hub.closed(1006);
  expect(hub.heard.isLoggedOut).toBe(true);
  await after(TIMEOUT_MS * 2);
  expect(requests.length).toBe(1);
});

test("a poll without an answer ends, and the next one follows", async () => {
  const limit = new AbortController();
  const timeout = vi.spyOn(AbortSignal, "timeout").mockReturnValue(limit.signal);
  vi.stubGlobal("fetch", (url: string, { signal }: RequestInit) => {
    requests.push(url);
    return new Promise((_, reject) => signal?.addEventListener("abort", () => reject(new Error("timeout"))));
  });
  await after(0);
  const unanswered = after(TIMEOUT_MS);
  limit.abort();
  await unanswered;
  void after(POLL_MS);
  expect(requests.length).toBe(2);
  timeout.mockRestore();
});

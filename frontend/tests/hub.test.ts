// The hub with a fake socket: subscriptions, gaps, hidden tabs, lost connections.
import { beforeEach, expect, test, vi } from "vitest";
import { Hub } from "../src/live/hub";
import { OPEN_MS, type SocketLike, backoff } from "../src/live/socket";

class Pretend implements SocketLike {
  readyState = 0;
  onopen: ((event: Event) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;
  onmessage: ((event: MessageEvent) => void) | null = null;
  sent: { subscribe?: string[]; fresh?: string[]; seen?: string }[] = [];
  open(): void {
    this.readyState = 1;
    this.onopen?.(new Event("open"));
  }
  says(message: object): void {
    this.onmessage?.({ data: JSON.stringify(message) } as MessageEvent);
  }
  send(data: string): void {
    this.sent.push(JSON.parse(data));
  }
  close(code = 1006): void {
    this.readyState = 3;
    this.onclose?.({ code } as CloseEvent);
  }
}

let sockets: Pretend[];
let hub: Hub;
const last = (): Pretend => sockets[sockets.length - 1] as Pretend;

beforeEach(() => {
  vi.useFakeTimers();
  sockets = [];
  hub = new Hub(() => (sockets.push(new Pretend()), last()), (run) => run());
});

test("one socket, the union of topics", () => {
  hub.listen("queue", () => undefined);
  hub.listen("jobs", () => undefined);
  const end = hub.listen("jobs", () => undefined);
  hub.start();
  last().open();
  end();
  expect(sockets.length).toBe(1);
  expect(last().sent).toEqual([{ subscribe: ["jobs", "queue"] }]);
});

test("a gap requests one snapshot", () => {
  const received: number[] = [];
  hub.listen("jobs", (state) => received.push(state.rows.size));
  hub.start();
  last().open();
  last().says({ topic: "jobs", seq: 1, snapshot: { a: {} } });
  last().says({ topic: "jobs", seq: 3, set: { c: {} } });
  last().says({ topic: "jobs", seq: 4, set: { d: {} } });
  expect(last().sent.slice(1)).toEqual([{ subscribe: ["jobs"], fresh: ["jobs"] }]);
  last().says({ topic: "jobs", seq: 5, snapshot: { a: {}, c: {}, d: {} } });
  expect(received).toEqual([1, 3]);
});

test("a missing snapshot is requested again", () => {
  hub.listen("jobs", () => undefined);
  hub.start();
  last().open();
  vi.advanceTimersByTime(6000);
  hub.watch();
  expect(last().sent.at(-1)).toEqual({ subscribe: ["jobs"], fresh: ["jobs"] });
});

test("a hidden tab unsubscribes; a visible one subscribes", () => {
  hub.listen("jobs", () => undefined);
  hub.start();
  last().open();
  last().says({ topic: "jobs", seq: 1, snapshot: { a: {} } });
  hub.setHidden(true);
  last().says({ topic: "jobs", seq: 2, set: { b: {} } });
  expect(hub.state("jobs").rows.size).toBe(1);
  hub.setHidden(false);
  expect(last().sent.slice(1)).toEqual([{ subscribe: [] }, { subscribe: ["jobs"] }]);
  last().says({ topic: "jobs", seq: 7, snapshot: { c: {} } });
  expect([...hub.state("jobs").rows.keys()]).toEqual(["c"]);
});

test("a lost connection reconnects, keeps rows and subscribes again", () => {
  hub.listen("jobs", () => undefined);
  hub.start();
  last().open();
  last().says({ topic: "jobs", seq: 1, snapshot: { a: {} } });
  last().close();
  expect(hub.heard.isConnected).toBe(false);
  expect(hub.state("jobs").rows.size).toBe(1);
  vi.advanceTimersByTime(400);
  expect(sockets.length).toBe(2);
  last().open();
  expect(last().sent).toEqual([{ subscribe: ["jobs"] }]);
  last().says({ topic: "jobs", seq: 1, snapshot: { b: {} } });
  expect([...hub.state("jobs").rows.keys()]).toEqual(["b"]);
});

test("a silent connection is dropped after 15 s", () => {
  hub.start();
  last().open();
  vi.advanceTimersByTime(16000);
  hub.watch();
  expect(hub.heard.isConnected).toBe(false);
  vi.advanceTimersByTime(400);
  expect(sockets.length).toBe(2);
});

test("an alive with answer is answered", () => {
  hub.start();
  last().open();
  last().says({ alive: "2026-01-31T08:00:00.123Z", cycle_age_seconds: null, answer: true });
  expect(last().sent.at(-1)).toEqual({ seen: "2026-01-31T08:00:00.123Z" });
  expect(hub.heard.cycleAgeSeconds).toBeNull();
});

test("a logged-out page does not retry; a visible tab tries once", () => {
  hub.start();
  last().open();
  last().close(4401);
  vi.advanceTimersByTime(60_000);
  expect(hub.heard.isLoggedOut).toBe(true);
  expect(sockets.length).toBe(1);
  hub.hurry();
  expect(sockets.length).toBe(2);
});

test("a connection that does not open is replaced", () => {
  hub.start();
  const unanswered = last();
  vi.advanceTimersByTime(OPEN_MS + 300);
  expect([sockets.length, unanswered.readyState]).toEqual([2, 3]);
  last().open();
  unanswered.open();
  vi.advanceTimersByTime(OPEN_MS);
  expect([sockets.length, hub.heard.isConnected]).toEqual([2, true]);
});

test("a server that closes at once is retried with backoff", () => {
  hub.start();
  for (let at = 0; at < 60; at += 1) {
    if (last().readyState === 0) {
      last().open();
      last().close(1013);
    }
    vi.advanceTimersByTime(500);
  }
  expect(sockets.length).toBeLessThan(14);
});

test("a view that fails does not stop the others", () => {
  const complaint = vi.spyOn(console, "error").mockImplementation(() => undefined);
  const received: string[] = [];
  hub.listen("jobs", () => {
    throw new Error("no");
  });
  hub.listen("jobs", () => received.push("drawn"));
  hub.start();
  last().open();
  last().says({ topic: "jobs", seq: 1, snapshot: {} });
  expect(received).toEqual(["drawn"]);
  complaint.mockRestore();
});

test("tries go from 0.3 s to 5 s with jitter", () => {
  expect(backoff(0, 0.999)).toBeLessThanOrEqual(300);
  expect(backoff(0, 0)).toBeGreaterThanOrEqual(200);
  expect(backoff(99, 0.999)).toBeLessThanOrEqual(5000);
  expect(backoff(99, 0)).toBeGreaterThanOrEqual(3500);
});

test("an alive without answer is not answered", () => {
  hub.start();
  last().open();
  last().says({ alive: "2026-01-31T08:00:00.123Z", cycle_age_seconds: null });
  expect(last().sent).toEqual([{ subscribe: [] }]);
});

test("a frame may hold several messages", () => {
  const received: string[] = [];
  hub.listen("jobs", (state) => received.push([...state.rows.keys()].join()));
  hub.start();
  last().open();
  last().says([{ topic: "jobs", seq: 1, snapshot: { a: {} } }, { topic: "jobs", seq: 2, set: { b: {} } }]);
  expect(received.at(-1)).toBe("a,b");
});

const node = (name: string, ...ids: number[]): object => ({ name, devices: ids.map((id) => ({ id })) });
const read = (utilisation: number | null, ...ids: number[]): object => ({
  last_seen_at: "2026-01-31T08:00:00Z", devices: ids, read_at: ids.map(() => "2026-01-31T08:00:00Z"), utilisation_percent: ids.map(() => utilisation),
  memory_used_mb: ids.map(() => null), temperature_celsius: ids.map(() => null), power_watts: ids.map(() => null),
});

test("nodes are joined with readings and keep identity if unchanged", () => {
  type Shown = Map<string, { last_seen_at: string | null; devices: { id: number; reading: { utilisation_percent: number | null } | null }[] }>;
  const received: Shown[] = [];
  hub.listen("nodes", (state) => state.hasRows && received.push(state.rows as unknown as Shown));
  hub.start();
  last().open();
  expect(last().sent).toEqual([{ subscribe: ["nodes", "readings"] }]);
  last().says({ topic: "nodes", seq: 1, snapshot: { a: node("a", 7, 8), b: node("b", 9) } });
  expect(received).toEqual([]);
  last().says({ topic: "readings", seq: 1, snapshot: { a: read(50, 7), b: read(1, 9) } });
  expect(received.at(-1)?.get("a")?.devices.map((device) => device.reading?.utilisation_percent)).toEqual([50, undefined]);
  last().says({ topic: "readings", seq: 2, patch: { a: { utilisation_percent: [60] } } });
  expect(received.at(-1)?.get("a")?.devices[0]?.reading?.utilisation_percent).toBe(60);
  expect(received.at(-1)?.get("a")?.last_seen_at).toBe("2026-01-31T08:00:00Z");
  expect(received.at(-1)?.get("b")).toBe(received.at(-2)?.get("b"));
});

test("a visible tab reconnects at once; a hidden one does not", () => {
  hub.start();
  last().open();
  last().close();
  for (let at = 0; at < 6; at += 1) {
    vi.advanceTimersByTime(5000);
    last().close();
  }
  const cached = sockets.length;
  hub.setHidden(true);
  expect(sockets.length).toBe(cached);
  hub.setHidden(false);
  expect(sockets.length).toBe(cached + 1);
});

test("rows that the page carries are drawn before the socket connects, and an equal snapshot changes nothing", () => {
  const drawn: ReadonlyMap<string, object>[] = [];
  hub.listen("jobs", ({ rows }) => drawn.push(rows));
  hub.load({ alive: "2026-01-31T08:00:00Z", cycle_age_seconds: null, topics: { jobs: { 7: { id: 7 } } }, errors: {} });
  expect(drawn.map((rows) => [...rows.keys()])).toEqual([["7"]]);
  expect(hub.heard.polledAt, "the page does not poll").toBeNull();
  hub.start();
  last().open();
  expect(last().sent).toEqual([{ subscribe: ["jobs"] }]);
  last().says({ topic: "jobs", seq: 1, snapshot: { 7: { id: 7 } } });
  expect(drawn[1]?.get("7")).toBe(drawn[0]?.get("7"));
});

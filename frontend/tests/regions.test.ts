// Regions: views, errors and removal; and the log view in a region.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Hub } from "../src/live/hub";
import { jobLog } from "../src/pages/job/log/view";
import { type MakeView, Regions } from "../src/live/regions";
import type { SocketLike } from "../src/live/socket";

let hub: Hub;
let sent: { subscribe?: string[] }[];
let says: (message: object) => void;

beforeEach(() => {
  sent = [];
  const socket: SocketLike = {
    readyState: 1, onopen: null, onclose: null, onmessage: null, close: () => undefined, send: (data) => void sent.push(JSON.parse(data)),
  };
  hub = new Hub(() => socket, (run) => run());
  hub.start();
  socket.onopen?.(new Event("open"));
  says = (message) => socket.onmessage?.({ data: JSON.stringify(message) } as MessageEvent);
});

afterEach(() => vi.unstubAllGlobals());

test("nothing is drawn before the first rows; an error is shown and removed", () => {
  document.body.innerHTML = '<section data-live="jobs" data-view="plain"></section>';
  const region = document.querySelector("section") as HTMLElement;
  const plain: MakeView = () => ({ draw: (state) => region.replaceChildren(`${state.rows.size} rows`) });
  new Regions({ hub }, { plain }, () => undefined).scan();
  expect(region.textContent).toBe("");
  says({ topic: "jobs", seq: 1, snapshot: { 1: {}, 2: {} } });
  expect(region.textContent).toBe("2 rows");
  says({ topic: "jobs", error: "not_found" });
  expect(region.querySelector(".live-error")?.textContent).toContain("no longer exists");
  expect(region.classList.contains("is-past"), "old content is marked as old").toBe(true);
  says({ topic: "jobs", seq: 2, snapshot: {} });
  expect([region.textContent, region.classList.contains("is-past")]).toEqual(["0 rows", false]);
});

test("an error is removed with any view; the row in the URL is revealed once", () => {
  document.body.innerHTML = '<section data-live="jobs" data-view="plain" aria-busy="true"></section>';
  const region = document.querySelector("section") as HTMLElement;
  const plain: MakeView = () => ({ draw: () => region.querySelector("p:not([class])") ?? region.append(Object.assign(document.createElement("p"), { id: "gpu 1" })) });
  location.hash = "#gpu%201";
  const went = vi.spyOn(Element.prototype, "scrollIntoView").mockImplementation(() => undefined);
  new Regions({ hub }, { plain }, () => undefined).scan();
  says({ topic: "jobs", error: "not_found" });
  says({ topic: "jobs", seq: 1, snapshot: { 1: {} } });
  says({ topic: "jobs", seq: 2, gone: ["1"] });
  expect([region.querySelector(".live-error"), region.getAttribute("aria-busy")]).toEqual([null, null]);
  expect([region.querySelector("p")?.className, went.mock.calls.length]).toEqual(["is-target", 1]);
  location.hash = "";
  went.mockRestore();
});

test("a removed region is closed with its topic", () => {
  document.body.innerHTML = '<section data-live="jobs" data-view="plain"></section><section data-live="queue" data-view="plain"></section>';
  const close = vi.fn();
  const plain: MakeView = () => ({ draw: () => undefined, close });
  const regions = new Regions({ hub }, { plain }, () => undefined);
  regions.scan();
  document.querySelector("section")?.remove();
  regions.scan();
  expect(close).toHaveBeenCalledOnce();
  expect(sent.at(-1)).toEqual({ subscribe: ["queue"] });
});

test("the log opens at its tail and follows new attempts", async () => {
  const logs: Record<string, string> = { "1.0": "\x1b[31mfirst\x1b[0m\n", "2.0": "second\n" };
  vi.stubGlobal("fetch", async (url: string) => {
    const requests = new URL(url, "http://x").searchParams;
    const all = logs[`${requests.get("attempt")}.${requests.get("rank")}`] ?? "";
    const offset = Math.max(0, Number(requests.get("offset")) < 0 ? all.length + Number(requests.get("offset")) : Number(requests.get("offset")));
    const headers = { "X-Log-Offset": `${offset}`, "X-Log-Next-Offset": `${all.length}`, "X-Log-Size": `${all.length}`, "X-Log-Complete": "false" };
    return new Response(all.slice(offset), { headers });
  });
  document.body.innerHTML = '<section data-live="job:17" data-view="job-log"></section>';
  new Regions({ hub }, { "job-log": jobLog }, () => undefined).scan();
  const text = (): string | null | undefined => document.querySelector("pre.log")?.textContent;
  const row = (attempt: number): object => ({ attempt, rank: 0, size: logs[`${attempt}.0`]?.length ?? 0 });
  says({ topic: "job:17", seq: 1, snapshot: { job: { id: 17 }, "log:1.0": row(1) } });
  await vi.waitFor(() => expect(text()).toBe("first"));
  expect(document.querySelector("pre.log .ansi-fg-1")?.textContent).toBe("first");
  logs["1.0"] += "more\n";
  says({ topic: "job:17", seq: 2, set: { "log:1.0": row(1) } });
  await vi.waitFor(() => expect(text()).toBe("firstmore"));
  says({ topic: "job:17", seq: 3, set: { "log:2.0": row(2) } });
  await vi.waitFor(() => expect(text()).toBe("second"));
  expect(document.querySelector("select")?.options.length).toBe(2);
});

// The notices menu: unread count, toasts, and marking as read.
import { beforeEach, expect, test, vi } from "vitest";
import { bell } from "../src/pages/notices/bell";
import { Hub } from "../src/live/hub";
import type { SocketLike } from "../src/live/socket";

class Pretend implements SocketLike {
  readyState = 1;
  onopen: ((event: Event) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;
  onmessage: ((event: MessageEvent) => void) | null = null;
  sent: { subscribe?: string[] }[] = [];
  says(message: object): void {
    this.onmessage?.({ data: JSON.stringify(message) } as MessageEvent);
  }
  send(data: string): void {
    this.sent.push(JSON.parse(data));
  }
  close(): void {}
}

const at = (secondsAgo: number): string => new Date(Date.now() - secondsAgo * 1000).toISOString();
const notice = (key: string, secondsAgo: number, isMine = true): object => ({
  key, at: at(secondsAgo), kind: "ended", severity: "red", sentence: `job ${key} failed`, href: `/jobs/${key}/`, tenant: "nlp", is_mine: isMine,
});
let socket: Pretend;
let details: HTMLDetailsElement;
let requests: string[];

beforeEach(() => {
  document.body.innerHTML =
    '<details class="bell"><summary></summary><span data-unread hidden></span><div data-list></div></details><input name="csrfmiddlewaretoken" value="t">';
  details = document.querySelector("details") as HTMLDetailsElement;
  requests = [];
  vi.stubGlobal("fetch", async (url: string) => (requests.push(url), new Response(null, { status: 204 })));
  socket = new Pretend();
  const hub = new Hub(() => socket, (run) => run());
  const view = bell(document.querySelector("[data-list]") as HTMLElement, { hub });
  hub.listen("notices", (state) => view.draw(state));
  hub.start();
  socket.onopen?.(new Event("open"));
});

const snapshot = (unread: number, ...notices: object[]): void =>
  socket.says({
    topic: "notices", seq: 1,
    snapshot: { state: { unread, seen_until: at(600) }, ...Object.fromEntries(notices.map((element) => [`notice:${(element as { key: string }).key}`, element])) },
  });
const comes = (seq: number, one: object): void => socket.says({ topic: "notices", seq, set: { [`notice:${(one as { key: string }).key}`]: one } });
const toasts = (): string[] => [...document.querySelectorAll(".toast")].map((toast) => toast.firstChild?.textContent ?? "");

test("unread notices are counted and marked, newest first", () => {
  snapshot(1, notice("1", 3600), notice("2", 60));
  expect(document.querySelector("[data-unread]")?.textContent).toBe("1");
  expect(document.querySelector("summary")?.getAttribute("aria-label")).toBe("Notices, 1 unread");
  expect([...document.querySelectorAll("li")].map((li) => [li.dataset.key, li.className])).toEqual([["2", "is-unread"], ["1", ""]]);
});

test("only new, own and recent notices pop up", () => {
  snapshot(1, notice("1", 1));
  expect(toasts()).toEqual([]);
  comes(2, notice("2", 1));
  comes(3, notice("3", 1, false));
  comes(4, notice("4", 900));
  expect(toasts()).toEqual(["job 2 failed."]);
});

test("opening the menu marks all read, and unread ones stay marked meanwhile", async () => {
  snapshot(1, notice("1", 60));
  details.open = true;
  expect(requests).toEqual(["/notices/seen/"]);
  socket.says({ topic: "notices", seq: 2, patch: { state: { unread: 0, seen_until: at(0) } } });
  expect(document.querySelector("[data-unread]")?.hasAttribute("hidden")).toBe(true);
  expect(document.querySelector("li")?.className).toBe("is-unread");
  details.open = false;
  expect(document.querySelector("li")?.className).toBe("");
});

test("each opening tries again to mark notices as read", () => {
  vi.stubGlobal("fetch", async (url: string) => (requests.push(url), new Response(null, { status: 503 })));
  snapshot(1, notice("1", 60));
  for (const isOpen of [true, false, true]) details.open = isOpen;
  expect(requests).toEqual(["/notices/seen/", "/notices/seen/"]);
});

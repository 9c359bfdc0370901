// The command palette: matches, order, keyboard use and server outages.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type Command, ranked, startCommands } from "../src/pages/search/palette";
import { score } from "../src/pages/search/fuzzy";

const command = (name: string, kind = "page"): Command => ({ kind, name, about: "", run: `/${name}/` });

test("the score prefers adjacent letters and word starts", () => {
  expect(score("Overview", "xq")).toBeNull();
  expect(score("Overview", "rev")).toBeNull();
  const best = (requests: string, ...names: string[]): string | undefined =>
    names.map((name) => ({ name, value: score(name, requests) ?? -99 })).sort((a, b) => b.value - a.value)[0]?.name;
  expect(best("mw", "Overview", "My work", "Submit")).toBe("My work");
  expect(best("no", "Join a node", "Nodes")).toBe("Nodes");
  expect(best("fl", "Fleet", "Fleet by rack")).toBe("Fleet");
});

test("the palette lists pages first, and a number finds a job", () => {
  const cached = [command("Queue"), command("Quit", "action")];
  const job = command("17 train", "job");
  expect(ranked(cached, [], "").map(({ name }) => name)).toEqual(["Queue"]);
  expect(ranked(cached, [job], "17").map(({ name }) => name)).toEqual(["17 train"]);
  const sweep = command("Sweep 17", "action");
  expect(["17", "#17"].map((requests) => ranked([...cached, sweep], [job], requests)[0])).toEqual([job, job]);
  expect(ranked(cached, [job], "qu").map(({ name }) => name)).toEqual(["Quit", "Queue", "17 train"].sort((a, b) => (score(b, "qu") ?? -9) - (score(a, "qu") ?? -9)));
});

const removed: string[] = [];
const went = vi.fn((href: string) => removed.push(href));
const press = (key: string, target: EventTarget, more: object = {}): boolean =>
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));

beforeEach(() => {
  removed.length = 0;
  document.body.innerHTML = '<nav class="rail"><a href="/queue/">Queue</a><a href="/nodes/">Nodes</a></nav>';
  // One listener each time would answer as often: each test has its own document's.
  vi.useFakeTimers();
});
afterEach(() => vi.useRealTimers());

test("Ctrl-K, type, Enter; Ctrl-K again closes; what the server finds is shown as text", async () => {
  const fetched = vi.fn(async () => ({ ok: true, json: async () => ({ found: [{ kind: "job", name: "7 <b>evil", about: "running", href: "/jobs/7/" }] }) }));
  vi.stubGlobal("fetch", fetched);
  startCommands(() => undefined, went);
  press("k", document.body, { ctrlKey: true });
  const dialog = document.querySelector<HTMLDialogElement>("dialog.palette");
  const input = dialog?.querySelector("input");
  if (!dialog || !input) throw new Error("no palette");
  expect(dialog.open).toBe(true);
  input.value = "ev";
  input.dispatchEvent(new Event("input"));
  await vi.advanceTimersByTimeAsync(200);
  expect(fetched).toHaveBeenCalledOnce();
  expect(dialog.querySelector("b")).toBeNull();
  expect(dialog.textContent).toContain("7 <b>evil");
  while (!dialog.querySelector('[aria-selected="true"]')?.textContent?.includes("evil")) press("ArrowDown", input);
  press("Enter", input);
  expect([removed, dialog.open]).toEqual([["/jobs/7/"], false]);
  fetched.mockRejectedValueOnce(new TypeError("Failed to fetch") as never);
  fetched.mockResolvedValueOnce({ ok: false, type: "opaqueredirect" } as never);
  press("k", document.body, { ctrlKey: true });
  for (const [query, words] of [["zzz", "the server gave no answer"], ["zzzz", "you are logged out"]]) {
    input.value = query ?? "";
    input.dispatchEvent(new Event("input"));
    await vi.advanceTimersByTimeAsync(200);
    expect(dialog.textContent).toContain(`The search failed: ${words}.`);
  }
  press("k", document.body, { ctrlKey: true });
  expect(dialog.open).toBe(false);
});

test("the open palette suspends the page's shortcuts", () => {
  document.body.insertAdjacentHTML("beforeend", "<button data-palette></button>");
  startCommands(() => undefined, went);
  document.querySelector<HTMLElement>("[data-palette]")?.click();
  const input = [...document.querySelectorAll<HTMLInputElement>("dialog.palette input")].at(-1);
  if (!input) throw new Error("no palette");
  const heard = vi.fn();
  document.addEventListener("keydown", heard);
  press("j", input);
  input.value = "nodes";
  input.dispatchEvent(new Event("input"));
  press("Enter", input, { isComposing: true });
  expect(heard).not.toHaveBeenCalled();
  expect(input.closest("dialog")?.open, "Enter takes the proposal of an input method").toBe(true);
  press("Escape", input);
  expect(heard).toHaveBeenCalledOnce();
  document.removeEventListener("keydown", heard);
});

test("join and theme are commands on every page", async () => {
  vi.stubGlobal("fetch", vi.fn(async () => ({ ok: true, json: async () => ({ found: [] }) })));
  document.body.insertAdjacentHTML("beforeend", "<button data-theme-toggle>◐</button><button data-palette></button>");
  startCommands(() => undefined, went);
  document.querySelector<HTMLElement>("[data-palette]")?.click();
  const dialog = [...document.querySelectorAll("dialog.palette")].at(-1);
  const input = dialog?.querySelector("input");
  if (!dialog || !input) throw new Error("no palette");
  const first = (requests: string): string | undefined => {
    input.value = requests;
    input.dispatchEvent(new Event("input"));
    return dialog.querySelector("li .grow")?.textContent ?? undefined;
  };
  expect([first("join"), first("theme"), first("dark")]).toEqual(["Join a node", "Theme: switch between light and dark", "Theme: switch between light and dark"]);
  expect(first("hold")).toBeUndefined();
  expect(dialog.textContent).toContain("No page, job, node, tenant or action matches");
});

// Matches of a search: stepping with wrap, and matches in new output.
import { expect, test, vi } from "vitest";
import { Hits } from "../src/pages/job/log/hits";
import { type Hit, Search } from "../src/pages/job/log/search";

test("matches are stepped through with wrap, and new ones are appended", () => {
  const removed: number[] = [];
  const hits = new Hits((hit) => removed.push(hit.line));
  const found: Hit[] = [1, 2, 3].map((line) => ({ line, offset: line * 10, text: `the loss of step ${line}` }));
  hits.step(1);
  hits.show(found.slice(0, 2), "LOSS");
  for (const by of [1, 1, 1, -1] as const) hits.step(by);
  expect(removed.splice(0)).toEqual([1, 2, 1, 2]);
  hits.show(found, "LOSS");
  for (const by of [1, 1] as const) hits.step(by);
  expect(removed.splice(0)).toEqual([3, 1]);
  expect([...hits.element.querySelectorAll("button")].map((button) => [button.textContent, button.getAttribute("aria-current")])).toEqual([
    ["1the loss of step 1", "true"], ["2the loss of step 2", null], ["3the loss of step 3", null],
  ]);
  expect(hits.element.querySelectorAll("mark").length).toBe(3);
  hits.clear();
  hits.show(found, "loss");
  hits.step(-1);
  expect([removed, hits.element.hidden]).toEqual([[3], false]);
});

test("a search continues into new output", async () => {
  vi.useFakeTimers();
  const requests: string[] = [];
  const search = new Search({ job: 7, attempt: 1, rank: 0 }, "loss", () => undefined, async (url) => {
    requests.push(new URLSearchParams(url.split("?")[1]).get("offset") ?? "");
    const size = requests.length * 100;
    return new Response(JSON.stringify({ hits: [[requests.length, size - 50, "loss"]], next_offset: size, next_line: requests.length, size, is_all: true }));
  });
  await search.go();
  search.grown(100);
  search.grown(150);
  search.grown(180);
  await vi.advanceTimersByTimeAsync(5000);
  expect([requests, [...search.hits.keys()]]).toEqual([["0", "100"], [1, 2]]);
  search.grown(900);
  search.end();
  await vi.advanceTimersByTimeAsync(5000);
  expect(requests.length).toBe(2);
  vi.useRealTimers();
});

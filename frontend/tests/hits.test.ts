// The finds of a search: forth and back, round at either end.
import { expect, test } from "vitest";
import { Hits } from "../src/log/hits";
import type { Hit } from "../src/log/search";

test("from find to find, round at either end, and those that come later are behind the others", () => {
  const gone: number[] = [];
  const hits = new Hits((hit) => gone.push(hit.line));
  const found: Hit[] = [1, 2, 3].map((line) => ({ line, offset: line * 10, text: `the loss of step ${line}` }));
  hits.step(1);
  hits.show(found.slice(0, 2), "LOSS");
  for (const by of [1, 1, 1, -1] as const) hits.step(by);
  expect(gone.splice(0)).toEqual([1, 2, 1, 2]);
  hits.show(found, "LOSS");
  for (const by of [1, 1] as const) hits.step(by);
  expect(gone.splice(0)).toEqual([3, 1]);
  expect([...hits.element.querySelectorAll("button")].map((button) => [button.textContent, button.getAttribute("aria-current")])).toEqual([
    ["1the loss of step 1", "true"], ["2the loss of step 2", null], ["3the loss of step 3", null],
  ]);
  expect(hits.element.querySelectorAll("mark").length).toBe(3);
  hits.clear();
  hits.show(found, "loss");
  hits.step(-1);
  expect([gone, hits.element.hidden]).toEqual([[3], false]);
});

// Times as text, and the tick.
import { expect, test } from "vitest";
import { ago, duration, relative, roughly, tick } from "../src/time";

test("durations", () => {
  expect([0, 60, 247, 3600, 3847, 86400, 263047].map(duration)).toEqual(["0 s", "1 min", "4 min 7 s", "1 h", "1 h 4 min", "1 d", "3 d 1 h"]);
});

test("roughly, in one unit", () => {
  expect([40, 200, 3600 * 5, 86400 * 2].map(roughly)).toEqual(["40 s", "3 min", "5 h", "2 d"]);
});

test("relative both ways", () => {
  expect(relative(0, 2000)).toBe("just now");
  expect(relative(0, 180_000)).toBe("3 min ago");
  expect(relative(60_000, 0)).toBe("in 1 min");
});

test("what ticks is brought up to now; what is not yet stays so", () => {
  const node = ago(new Date(Date.now() - 1000).toISOString());
  document.body.replaceChildren(node, ago(null));
  tick(document, Date.now() + 120_000);
  expect(node.textContent).toBe("2 min ago");
  expect(node.title).not.toBe("");
  expect(document.querySelector(".na")?.textContent).toBe("–");
});

// Times as text, and the tick.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { h } from "../src/ui/dom";
import { absolute, ago, clocked, clockedText, duration, learnServerTime, relative, roughly, serverNow, tick } from "../src/ui/time";

// The clock stands still: a slow machine passes a millisecond, and with it a minute, between two lines of a test.
beforeEach(() => void vi.useFakeTimers({ toFake: ["Date"], now: Date.UTC(2030, 0, 2, 12) }));
afterEach(() => void vi.useRealTimers());

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

test("ticking times are updated; missing ones stay", () => {
  const node = ago(new Date(Date.now() - 1000).toISOString());
  document.body.replaceChildren(node, ago(null));
  tick(document, Date.now() + 120_000);
  expect(node.textContent).toBe("2 min ago");
  expect(node.title).not.toBe("");
  expect(document.querySelector(".na")?.textContent).toBe("–");
});

test("a moment in a sentence is local, with day and year if different", () => {
  const at = (day: number, hour: number): string => new Date(2031, 0, day, hour, 5).toISOString();
  const says = `starts between ${at(31, 8)} and ${at(31, 9).slice(0, 16).replace("T", " ")} UTC, or so`;
  document.body.replaceChildren(h("p", {}, ...clocked(says)));
  expect(document.body.textContent).toBe("starts between 31 Jan 2031, 08:05 and 31 Jan 2031, 09:05, or so");
  tick(document, Date.parse(at(3, 1)));
  expect(document.body.textContent).toBe("starts between 31 Jan, 08:05 and 31 Jan, 09:05, or so");
  tick(document, Date.parse(at(31, 1)));
  expect(document.body.textContent).toBe("starts between 08:05 and 09:05, or so");
  expect([...document.querySelectorAll("time")].map((time) => time.title)).toEqual(["31 Jan 2031, 08:05:00", "31 Jan 2031, 09:05:00"]);
  expect(clockedText("held by its owner")).toBe("held by its owner");
  expect(clockedText("label day=2031-99-99T08:00:00Z")).toBe("label day=2031-99-99T08:00:00Z");
  expect(absolute(at(31, 8))).toBe("31 Jan 2031, 08:05:00");
});

test("relative times use the server's clock", () => {
  learnServerTime(new Date(Date.now() - 3_600_000).toISOString());
  expect(Math.round((serverNow() - Date.now()) / 60_000)).toBe(-60);
  expect(ago(new Date(Date.now() - 3_600_000 - 180_000).toISOString()).textContent).toBe("3 min ago");
  learnServerTime("no time");
  expect(Math.round((serverNow() - Date.now()) / 60_000)).toBe(-60);
  learnServerTime(new Date().toISOString());
});

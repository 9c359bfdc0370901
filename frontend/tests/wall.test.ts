// Wall mode: the clock, and Esc.
import { expect, test, vi } from "vitest";
import { startWall } from "../src/pages/overview/wall";

const escape = (): boolean => document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));

test("wall mode shows the time, and Escape returns to the overview", () => {
  vi.useFakeTimers({ now: new Date(2031, 0, 31, 8, 5, 9) });
  document.body.innerHTML = "<time data-wall-clock></time>";
  const went = vi.fn();
  startWall(went);
  escape();
  expect([document.querySelector("time")?.textContent, went.mock.calls]).toEqual(["", []]);
  document.body.className = "wall";
  startWall(went);
  expect(document.querySelector("time")?.textContent).toBe("08:05:09");
  vi.advanceTimersByTime(2000);
  expect(document.querySelector("time")?.textContent).toBe("08:05:11");
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "x" }));
  escape();
  expect(went.mock.calls).toEqual([["/overview/"]]);
  vi.useRealTimers();
});

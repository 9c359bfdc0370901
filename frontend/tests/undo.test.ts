// Delayed requests with undo; leaving the page sends them.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { UNDO_MS, isPending, schedule, startUndo } from "../src/actions/undo";

startUndo();
beforeEach(() => {
  vi.useFakeTimers();
  document.body.replaceChildren();
});
afterEach(() => vi.useRealTimers());

const press = (word: string): void => [...document.querySelectorAll("button")].find((button) => button.textContent === word)?.click();

test("leaving the page sends pending requests once", () => {
  const sent: string[] = [];
  schedule("Job 7 will be cancelled", ["job 7"], (isLeaving) => sent.push(`7 ${isLeaving}`));
  press("Undo");
  schedule("Job 8 will be cancelled", ["job 8"], (isLeaving) => sent.push(`8 ${isLeaving}`));
  expect([isPending("job 7"), isPending("job 8")]).toEqual([false, true]);
  dispatchEvent(new Event("pagehide"));
  vi.advanceTimersByTime(2 * UNDO_MS);
  expect([sent, isPending("job 8"), document.querySelector(".toast")]).toEqual([["8 true"], false, null]);
});

test("Do it now sends at once", () => {
  const sent: boolean[] = [];
  schedule("Job 7 will be cancelled", ["job 7"], (isLeaving) => sent.push(isLeaving));
  press("Do it now");
  vi.advanceTimersByTime(2 * UNDO_MS);
  expect(sent).toEqual([false]);
});

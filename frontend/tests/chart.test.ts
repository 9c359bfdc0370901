// Charts: gaps, stacks and descriptions.
import { expect, test } from "vitest";
import { Chart } from "../src/chart/chart";
import { type ChartData, broken, ends, gaps, mark, moment, ofDays, formatValue, sentence, short, stacked, top } from "../src/chart/model";

const data = (times: number[], values: (number | null)[], more: Partial<ChartData> = {}): ChartData => ({
  label: "GPU 0", unit: "%", times, step: 10, lines: [{ label: "use", values }], ...more,
});

test("a pause in the times is a gap, and breaks the line", () => {
  const paused = data([0, 10, 60, 70], [1, 2, 3, 4]);
  expect(gaps(paused)).toEqual([[10, 60]]);
  expect(broken(paused)).toEqual({ times: [0, 10, 20, 60, 70], values: [[1, 2, null, 3, 4]] });
});

test("unknown values are gaps, also before the first and after the last", () => {
  expect(gaps(data([0, 10, 20, 30, 40], [1, null, null, null, 5]))).toEqual([[0, 40]]);
  expect(gaps(data([50, 60], [1, 2], { from: 0, until: 100 }))).toEqual([[0, 50], [60, 100]]);
  expect(gaps(data([0, 10, 20], [1, 2, 3]))).toEqual([]);
});

test("bars are stacked without gaps", () => {
  expect(stacked([[1, 2], [3, null]])).toEqual([[1, 2], [4, 2]]);
  const bars: ChartData = { ...data([0, 100], [1, 2]), kind: "bars", lines: [{ label: "a", values: [1, 2] }, { label: "b", values: [3, 4] }] };
  expect(top(bars)).toBeCloseTo(6.3);
  expect(gaps(bars)).toEqual([]);
  expect(ends(bars)).toEqual([0, 110]);
});

test("the axis covers all values and is never empty", () => {
  expect(top(data([0], [40], { axisTop: 100 }))).toBe(100);
  expect(top(data([0], [0]))).toBe(1);
  expect(top(data([0], [null]))).toBe(1);
});

test("numbers are short and unknown values are n/a", () => {
  expect([short(0.12345), short(1234.5), short(97)]).toEqual(["0.123", "1,230", "97"]);
  expect([formatValue(null, "%"), formatValue(50, "%"), formatValue(310.4, "W")]).toEqual(["n/a", "50%", "310 W"]);
});

test("a chart has a description", () => {
  expect(sentence(data([0, 10], [12, 90]))).toBe("GPU 0: use from 12% to 90%");
  expect(sentence(data([0], [null]))).toBe("GPU 0: use n/a");
  const host = document.createElement("div");
  const chart = new Chart(host, "the GPU does not tell");
  chart.show(data([0, 10], [null, null]));
  expect(host.textContent).toBe("n/a");
  expect(host.querySelector(".na")?.getAttribute("title")).toBe("the GPU does not tell");
  expect(host.getAttribute("aria-label")).toBe("GPU 0: use n/a");
});

test("days are UTC and have no time of day", () => {
  const zone = process.env.TZ;
  process.env.TZ = "America/Los_Angeles";
  const days: ChartData = { label: "", unit: "", times: [], lines: [], kind: "bars", step: 86_400 };
  const at = Date.parse("2026-11-20T00:00:00Z") / 1000;
  expect(new Date(at * 1000).getDate()).toBe(19);
  expect([ofDays(days), ofDays({ ...days, kind: "line" }), ofDays({ ...days, step: 60 })]).toEqual([true, false, false]);
  expect([mark(at, 86_400, true), mark(at + 43_200, 43_200, true), moment(at, true)]).toEqual(["20 Nov", "", "20 Nov 2026"]);
  // All other times use the viewer's clock.
  expect([mark(at, 3600, false), mark(at, 86_400, false)]).toEqual(["16:00", "19 Nov"]);
  if (zone === undefined) delete process.env.TZ;
  else process.env.TZ = zone;
});

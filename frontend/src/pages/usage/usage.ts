// The stacked chart of Usage, from data in the page.
import { Chart } from "../../chart/chart";
import type { ChartData } from "../../chart/model";

interface UsageData {
  days: string[];
  lines: { label: string; values: number[] }[];
}

const DAY_SECONDS = 86_400;

export function usageChart(usage: UsageData, label: string, unit: string): ChartData {
  return {
    label,
    unit,
    times: usage.days.map((day) => Date.parse(`${day}T00:00:00Z`) / 1000),
    lines: usage.lines,
    kind: "bars",
    step: DAY_SECONDS,
    height: 240,
  };
}

/** Return a function that redraws the chart when the theme changes. */
export function startUsage(): () => void {
  const host = document.querySelector<HTMLElement>("[data-chart=usage]");
  const data = document.getElementById("usage-data");
  if (host === null || data === null) return () => undefined;
  const usage = JSON.parse(data.textContent ?? "{}") as UsageData;
  if (usage.lines.length === 0) return () => undefined;
  const chart = new Chart(host);
  chart.show(usageChart(usage, host.dataset.label ?? "", host.dataset.unit ?? ""));
  return () => chart.restyle();
}

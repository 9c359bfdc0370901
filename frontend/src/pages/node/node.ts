// The charts of a node: one per GPU, of one reading, on one axis, from recorded samples.
import { Chart } from "../../chart/chart";
import type { ChartData } from "../../chart/model";
import { h } from "../../ui/dom";
import { request } from "../../ui/fetch_errors";
import type { MakeView } from "../../live/regions";
import { serverNow } from "../../ui/time";

interface Gpu {
  id: number;
  index: number;
}

type Sample = { at: string } & Record<string, number | null | string>;

interface Metric {
  raw: string;
  rolled: string;
  unit: string;
  axisTop?: number;
  /** Converts MiB to GiB. */
  scale?: number;
}

const METRICS: Record<string, Metric> = {
  utilisation: { raw: "utilisation_percent", rolled: "utilisation_mean", unit: "%", axisTop: 100 },
  memory: { raw: "memory_used_mb", rolled: "memory_mean", unit: "GiB", scale: 1 / 1024 },
  temperature: { raw: "temperature_celsius", rolled: "temperature_mean", unit: "°C", axisTop: 90 },
  power: { raw: "power_watts", rolled: "power_mean", unit: "W" },
};

const STEP: Record<string, number> = { raw: 10, "5m": 300 };
/** The maximum of sample pages. */
const MAX_PAGES = 4;

/** Load all samples since a moment, page by page. */
async function samples(gpu: Gpu, resolution: string, since: string): Promise<Sample[]> {
  const result: Sample[] = [];
  let more = `since=${encodeURIComponent(since)}`;
  for (let page = 0; page < MAX_PAGES && more !== ""; page++) {
    const answer = await request(`/api/v1/gpus/${gpu.id}/samples?resolution=${resolution}&limit=1000&${more}`);
    if (!answer.ok) throw new Error(`${answer.status}`);
    const answered = (await answer.json()) as { items: Sample[]; next_cursor: string | null };
    result.push(...answered.items);
    more = answered.next_cursor === null ? "" : `cursor=${encodeURIComponent(answered.next_cursor)}`;
  }
  return result;
}

/** The data of a chart: one reading of one GPU. */
export function chartOf(gpu: Gpu, list: readonly Sample[], name: string, resolution: string, from: number, until: number): ChartData {
  const metric = METRICS[name] ?? METRICS["utilisation"]!;
  const field = resolution === "raw" ? metric.raw : metric.rolled;
  const value = (sample: Sample): number | null => {
    const reading = sample[field];
    return typeof reading === "number" ? reading * (metric.scale ?? 1) : null;
  };
  const times = list.map((sample) => Date.parse(sample.at) / 1000);
  const data: ChartData = {
    label: `GPU ${gpu.index}, ${name}`,
    unit: metric.unit,
    times,
    lines: [{ label: name, values: list.map(value) }],
    step: STEP[resolution] ?? 300,
    from,
    until,
    height: 88,
    group: "node",
  };
  return metric.axisTop === undefined ? data : { ...data, axisTop: metric.axisTop };
}

export const nodeReadings: MakeView = (region) => {
  const gpus = JSON.parse(region.dataset.gpus ?? "[]") as Gpu[];
  const resolution = region.dataset.resolution ?? "5m";
  const hours = Number(region.dataset.hours ?? "24");
  const select = document.querySelector<HTMLSelectElement>("[data-metric]");
  const requested = new URLSearchParams(location.search).get("show");
  if (select !== null && requested !== null && requested in METRICS) select.value = requested;
  const hosts = gpus.map(() => h("div"));
  const charts = hosts.map((host) => new Chart(host, "no readings in this period"));
  const samplesByGpu = new Map<number, Sample[]>();
  let askedAt = 0;

  const show = (): void => {
    const until = serverNow() / 1000;
    gpus.forEach((gpu, at) => charts[at]?.show(chartOf(gpu, samplesByGpu.get(gpu.id) ?? [], select?.value ?? "utilisation", resolution, until - hours * 3600, until)));
  };
  const load = async (): Promise<void> => {
    // New samples arrive every five minutes or ten seconds.
    if (Date.now() - askedAt < (STEP[resolution] ?? 300) * 1000) return;
    askedAt = Date.now();
    const since = new Date(serverNow() - hours * 3_600_000).toISOString();
    try {
      for (const gpu of gpus) samplesByGpu.set(gpu.id, await samples(gpu, resolution, since));
      if (hosts[0]?.isConnected !== true) region.replaceChildren(...hosts.map((host, at) => h("figure", {}, h("figcaption", { class: "small muted" }, `GPU ${gpus[at]?.index}`), host)));
      show();
    } catch {
      if (samplesByGpu.size === 0) region.replaceChildren(h("p", { class: "empty", role: "alert" }, "The readings could not be loaded. Reload the page."));
    }
  };
  select?.addEventListener("change", () => {
    const address = new URL(location.href);
    address.searchParams.set("show", select.value);
    history.replaceState(null, "", address);
    show();
  });
  return {
    draw: () => void load(),
    restyle: () => charts.forEach((chart) => chart.restyle()),
    close: () => charts.forEach((chart) => chart.end()),
  };
};

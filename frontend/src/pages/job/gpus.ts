// The recorded readings of a job's GPUs, as small charts on one time axis.
import { Chart } from "../../chart/chart";
import type { ChartData } from "../../chart/model";
import { h, plural, refill } from "../../ui/dom";
import { request, unexpected, whyFailed } from "../../ui/fetch_errors";
import type { MakeView } from "../../live/regions";
import type { AttemptRow } from "../../live/topics";
import { whenVisible } from "../../live/visibility";
import { empty, nodeLink, shortModel, under } from "../../ui/pieces";

interface Device {
  rank: number;
  node: string;
  index: number | null;
  model: string;
  memory_mb: number | null;
  times: number[];
  utilisation_percent: (number | null)[];
  memory_used_mb: (number | null)[];
  temperature_celsius: (number | null)[];
  power_watts: (number | null)[];
}

export interface Readings {
  attempt: number;
  from: number;
  until: number;
  is_live: boolean;
  step: number;
  gpus: number;
  devices: Device[];
}

type Name = "utilisation_percent" | "memory_used_mb" | "temperature_celsius" | "power_watts";

const QUANTITIES: readonly { name: Name; label: string; unit: string; scale: (value: number) => number; axisTop: (device: Device) => number }[] = [
  { name: "utilisation_percent", label: "Utilisation", unit: "%", scale: (value) => value, axisTop: () => 100 },
  { name: "memory_used_mb", label: "Memory", unit: "GiB", scale: (value) => value / 1024, axisTop: (device) => (device.memory_mb ?? 0) / 1024 },
  { name: "temperature_celsius", label: "Temperature", unit: "°C", scale: (value) => value, axisTop: () => 90 },
  { name: "power_watts", label: "Power", unit: "W", scale: (value) => value, axisTop: () => 0 },
];

const AGAIN_MS = 15_000;

/** The data of a chart: one quantity of one GPU over the attempt. */
export function chartOf(readings: Readings, device: Device, quantity: (typeof QUANTITIES)[number]): ChartData {
  const values = device[quantity.name].map((value) => (value === null ? null : quantity.scale(value)));
  return {
    label: `${device.node} GPU ${device.index ?? "?"} ${quantity.label.toLowerCase()}`,
    unit: quantity.unit,
    times: device.times,
    lines: [{ label: quantity.label, values }],
    step: readings.step,
    from: readings.from,
    until: readings.until,
    axisTop: quantity.axisTop(device),
    height: 104,
    group: "job-gpus",
  };
}

export const jobGpus: MakeView = (region) => {
  const job = region.dataset.live?.split(":")[1] ?? "";
  const box = h("div", { class: "gpu-charts" });
  const chooser = h("select");
  const bar = h("div", { class: "card-head toolbar", hidden: true }, h("label", {}, "Attempt ", chooser));
  region.append(bar, box);
  let charts: Chart[] = [];
  let [drawnKey, isOver] = ["", false];
  let attempts: readonly string[] = [];
  let stopWaiting = (): void => undefined;
  const later = (): void => {
    stopWaiting();
    stopWaiting = whenVisible(() => void load(), AGAIN_MS);
  };

  const show = (readings: Readings): void => {
    const rows = readings.devices.map((device) => `${device.rank} ${device.node} ${device.index}`).join();
    const key = `${readings.attempt} ${rows}`;
    if (key !== drawnKey) {
      drawnKey = key;
      charts.forEach((chart) => chart.end());
      charts = [];
      box.replaceChildren(...layout(readings, charts));
    }
    const data = readings.devices.flatMap((device) => QUANTITIES.map((quantity) => chartOf(readings, device, quantity)));
    charts.forEach((chart, at) => data[at] && chart.show(data[at]));
    stopWaiting();
    if (readings.is_live) later();
  };

  const load = async (): Promise<void> => {
    if (isOver) return;
    const attempt = chooser.value;
    try {
      const response = await request(`/jobs/${job}/readings/?attempt=${attempt}`);
      if (!response.ok) throw unexpected(response);
      const readings = (await response.json()) as Readings;
      // Another attempt was chosen meanwhile: its readings are on their way.
      if (!isOver && attempt === chooser.value) show(readings);
    } catch (error) {
      if (drawnKey === "") box.replaceChildren(empty(`The readings could not be loaded: ${whyFailed(error)}. Reload the page to try again.`));
      else later();
    }
  };
  chooser.addEventListener("change", () => {
    history.replaceState(history.state, "", `?tab=gpus&attempt=${chooser.value}`);
    void load();
  });

  return {
    draw(state) {
      const now = under<AttemptRow>(state, "attempt:").map(([, { number }]) => number).sort((a, b) => b - a).map(String);
      if (now.length === 0) return refill(box, empty("This job has not had a GPU yet. Its utilisation, memory, temperature and power appear here once it runs."));
      if (now.join() === attempts.join()) return;
      const requested = new URLSearchParams(location.search).get("attempt") ?? "";
      attempts = now;
      chooser.replaceChildren(...now.map((number) => h("option", {}, number)));
      if (now.includes(requested)) chooser.value = requested;
      bar.hidden = now.length === 1;
      void load();
    },
    restyle: () => charts.forEach((chart) => chart.restyle()),
    close() {
      isOver = true;
      stopWaiting();
      charts.forEach((chart) => chart.end());
    },
  };
};

function layout(readings: Readings, charts: Chart[]): Node[] {
  if (readings.devices.length === 0) return [empty("This attempt had no GPU.")];
  const heads = QUANTITIES.map(({ label, unit }) => h("span", { class: "gpu-head" }, label, h("span", { class: "muted" }, ` ${unit}`)));
  const rows = readings.devices.map((device) => {
    const cells = QUANTITIES.map((quantity) => {
      const host = h("div", { "data-label": `${quantity.label} ${quantity.unit}` });
      charts.push(new Chart(host, `no ${quantity.label.toLowerCase()} readings in this period`));
      return host;
    });
    const name = h("div", { class: "gpu-name" }, nodeLink(device.node), h("b", {}, `GPU ${device.index ?? "?"}`), h("span", { class: "muted small" }, shortModel(device.model)), h("span", { class: "muted small" }, `rank ${device.rank}`));
    return h("div", { class: "gpu-row" }, name, ...cells);
  });
  const more = readings.gpus - readings.devices.length;
  const note = more > 0 ? [empty(`This shows the first ${plural(readings.devices.length, "GPU")} of ${readings.gpus}. Read the others at GET /api/v1/gpus/{id}/samples.`)] : [];
  return [h("div", { class: "gpu-row gpu-heads", "aria-hidden": "true" }, h("span"), ...heads), ...rows, ...note];
}

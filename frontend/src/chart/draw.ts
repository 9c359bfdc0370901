// Draws charts with uPlot, in the colours of the style sheet; the only file that knows the library.
/// <reference types="vite/client" />
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { resolve } from "../pages/fleet/palette";
import type { Drawing } from "./chart";
import { type ChartData, broken, ends, gaps, mark, moment, ofDays, formatValue, short, stacked, top } from "./model";

const HEIGHT = 120;
/** Owner colours; amber and red are for problems. */
const COLOURS = ["owner-0", "owner-1", "owner-2", "owner-3", "owner-4", "owner-5", "owner-6", "owner-7"];

export function drawn(host: HTMLElement): Drawing {
  let plot: uPlot | null = null;
  let data: ChartData | null = null;
  let signature = "";

  const begin = (): void => {
    plot?.destroy();
    if (data !== null) plot = new uPlot(options(host, () => data as ChartData), aligned(data), host);
  };
  const watch = new ResizeObserver(() => {
    const width = host.clientWidth;
    if (plot !== null && width > 0 && width !== plot.width) plot.setSize({ width, height: plot.height });
  });
  watch.observe(host);

  return {
    draw(next) {
      data = next;
      const kind = JSON.stringify([next.lines.map((line) => [line.label, line.colour]), next.kind, next.unit, next.height, next.group]);
      if (plot === null || kind !== signature) begin();
      else plot.setData(aligned(next));
      signature = kind;
    },
    restyle: begin,
    end() {
      watch.disconnect();
      plot?.destroy();
      plot = null;
    },
  };
}

function aligned(data: ChartData): uPlot.AlignedData {
  const { times, values } = broken(data);
  // Draw the top of the stack first, and lower bars over it.
  return [times, ...(data.kind === "bars" ? stacked(values).reverse() : values)] as uPlot.AlignedData;
}

const colour = (name: string): string => resolve(document.body, `var(--${name})`);

function options(host: HTMLElement, data: () => ChartData): uPlot.Options {
  const now = data();
  host.classList.toggle("is-single", now.lines.length === 1);
  const lines = now.lines.map((line, at) => ({ line, at }));
  if (now.kind === "bars") lines.reverse();
  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width: Math.max(host.clientWidth, 80),
    height: now.height ?? HEIGHT,
    // Half of the last mark is beyond the axis.
    padding: [8, 24, 0, 0],
    // Days are UTC, as in the ledger.
    ...(ofDays(now) ? { tzDate: (at: number) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC") } : {}),
    scales: {
      x: { range: () => [...ends(data())] },
      y: { range: () => [0, top(data())] },
    },
    axes: [
      { ...axis, size: 24, space: 72, values: (_, splits) => splits.map((at) => mark(at, (splits[1] ?? 0) - (splits[0] ?? 0), ofDays(now))) },
      { ...axis, size: 48, space: 28, values: (_, splits) => splits.map(short) },
    ],
    cursor: { y: false, drag: { x: false, y: false }, ...(now.group ? { sync: { key: now.group } } : {}) },
    legend: { live: true, show: true },
    series: [
      { label: "", value: (_, at) => (at === null ? "" : moment(at, ofDays(now))) },
      ...lines.map(({ line, at }) => series(line.label, colour(line.colour ?? COLOURS[at % COLOURS.length] ?? ""), at, data)),
    ],
    hooks: {
      drawClear: [(plot: uPlot) => hatch(plot, data())],
      setCursor: [(plot: uPlot) => void host.classList.toggle("has-cursor", (plot.cursor.left ?? -1) >= 0)],
    },
  };
}

/** The legend shows the line's own value, not the stacked one. */
function series(label: string, stroke: string, at: number, data: () => ChartData): uPlot.Series {
  const isBars = data().kind === "bars";
  return {
    label,
    stroke,
    width: isBars ? 0 : 1.5,
    points: { show: false },
    value: (_, value, __, index) => (index === null ? inAll(data(), at) : formatValue(isBars ? data().lines[at]?.values[index] : value, data().unit)),
    ...(isBars ? { fill: stroke, paths: uPlot.paths.bars?.({ size: [0.9, 64], align: 1 }) as uPlot.Series.PathBuilder } : {}),
  };
}

/** Without a cursor: the sum of bars, or the last known value of a line. */
function inAll(data: ChartData, at: number): string {
  const values = (data.lines[at]?.values ?? []).filter((value) => value !== null);
  return formatValue(data.kind === "bars" ? values.reduce((sum, value) => sum + value, 0) : values.at(-1), data.unit);
}

/** Hatch unknown times, never draw zero. */
function hatch(plot: uPlot, data: ChartData): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = colour("hatch");
  ctx.lineWidth = 2 * devicePixelRatio;
  for (const [from, until] of gaps(data)) {
    const [left, right] = [plot.valToPos(from, "x", true), plot.valToPos(until, "x", true)];
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, bbox.top, right - left, bbox.height);
    ctx.clip();
    ctx.beginPath();
    for (let x = left - bbox.height; x < right; x += 6 * devicePixelRatio) {
      ctx.moveTo(x, bbox.top + bbox.height);
      ctx.lineTo(x + bbox.height, bbox.top);
    }
    ctx.stroke();
    ctx.restore();
  }
  ctx.restore();
}

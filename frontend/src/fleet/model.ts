// From the rows of the topic to what is laid out, painted and told: groups, cells in drawing order, tooltips.
import type { DeviceRow, NodeRow } from "../topics";
import { byName, shortModel } from "../views/pieces";
import { absent } from "./words";
import { type Fill, look, reads, value } from "./looks";
import type { LayoutGroup } from "./layout";
import type { CellPaint } from "./paint";

export type Grouping = "none" | "model" | "state";

export interface FleetCell {
  node: NodeRow;
  device: DeviceRow;
}

export interface Model {
  groups: LayoutGroup[];
  /** In the order of the layout's cells. */
  cells: FleetCell[];
}

/** What the page's address asks to show brightly: ?cell=busy, ?job=17, ?tenant=red. */
export interface Spotlight {
  cell: string | null;
  job: number | null;
  tenant: string | null;
}

export function model(nodes: Iterable<NodeRow>, grouping: Grouping): Model {
  const sorted = [...nodes].sort((a, b) => byName(a.name, b.name));
  const groups = new Map<string, NodeRow[]>();
  for (const node of sorted) {
    const title = titleOf(node, grouping);
    const known = groups.get(title);
    if (known === undefined) groups.set(title, [node]);
    else known.push(node);
  }
  const ordered = [...groups].sort(([a], [b]) => byName(a, b));
  return {
    groups: ordered.map(([title, members]) => ({ title, nodes: members.map((node) => ({ name: node.name, cells: node.devices.length })) })),
    cells: ordered.flatMap(([, members]) => members.flatMap((node) => node.devices.map((device) => ({ node, device })))),
  };
}

function titleOf(node: NodeRow, grouping: Grouping): string {
  if (grouping === "none") return "";
  if (grouping === "model") return [...new Set(node.devices.map((device) => shortModel(device.model)))].sort().join(", ") || "no GPU";
  return node.state === "online" && node.intent !== "open" ? node.intent : node.state;
}

export function paints(cells: readonly FleetCell[], fill: Fill, light: Spotlight): CellPaint[] {
  return cells.map(({ node, device }) => {
    const jobs = device.jobs ?? [];
    const isAsked =
      (light.cell === null || device.cell === light.cell) &&
      (light.job === null || jobs.includes(light.job)) &&
      (light.tenant === null || (device.tenants ?? []).includes(light.tenant));
    const isLit = light.job !== null && jobs.includes(light.job);
    const isHeld = device.cell === "busy" || device.cell === "held_idle";
    const { kind } = look(device, node);
    const holder = jobs.length > 0 ? `#${jobs[0]}${jobs.length > 1 ? ` +${jobs.length - 1}` : ""}` : isHeld ? "held" : device.cell;
    const shown = kind === "unknown" ? "" : reads(device, fill);
    const degrees = device.reading?.temperature_celsius;
    const extra = fill === "state" && degrees != null && kind !== "unknown" ? ` ${Math.round(degrees)}°` : "";
    return {
      kind,
      value: fill === "state" ? undefined : kind === "unknown" ? null : value(device, fill),
      isDim: !isAsked,
      isLit,
      isHeld,
      first: kind === "unknown" ? "no data" : holder,
      second: shown + extra,
    };
  });
}

/** Everything about one cell, in the order of importance. */
export function tell({ node, device }: FleetCell): string[] {
  const { words } = look(device, node);
  const reading = device.reading;
  const lines = [`${node.name} · GPU ${device.index} · ${shortModel(device.model)}`, words];
  const jobs = device.jobs ?? [];
  if (jobs.length > 0) lines.push(`${jobs.length === 1 ? "job" : "jobs"} ${jobs.map((id) => `#${id}`).join(", ")}`);
  const tenants = device.tenants ?? [];
  if (tenants.length > 0) lines.push(`tenant ${tenants.join(", ")}`);
  if (reading === null || node.state === "lost") {
    lines.push(absent(node));
  } else {
    const memory = device.memory_mb === null ? "" : ` of ${(device.memory_mb / 1024).toFixed(0)} GB`;
    lines.push(
      `${reads(device, "utilisation")} used · ${reads(device, "memory")}${memory} · ${reads(device, "temperature")}C` +
        (reading.power_watts === null ? "" : ` · ${Math.round(reading.power_watts)} W`),
    );
  }
  return lines;
}

// The model of the map, from topic rows: groups, cells in drawing order, tooltips.
import { plural } from "../../ui/dom";
import { glyph } from "../../ui/states";
import type { DeviceRow, NodeRow } from "../../live/topics";
import { byName, shortModel } from "../../ui/pieces";
import { type Grouping, type Spotlight, fits, isPlain } from "./address";
import { type Fill, OTHERS, whyUnknown, idleFor, appearance, owner, formatReading, value } from "./looks";
import type { LayoutGroup } from "./layout";
import type { CellPaint } from "./paint";

export interface FleetCell {
  node: NodeRow;
  device: DeviceRow;
}

export interface Model {
  groups: LayoutGroup[];
  /** In the order of the layout's cells. */
  cells: FleetCell[];
}

/** The name of a GPU in the URL. A lost GPU keeps its index, which its replacement has too: `earlier` GPUs of the node with the same index. */
export const gpuName = (node: string, index: number, earlier: number): string => `${node}/${index}${earlier > 0 ? `/${earlier + 1}` : ""}`;

export function nameOf({ node, device }: FleetCell): string {
  const alike = node.devices.filter((each) => each.index === device.index);
  return gpuName(node.name, device.index, alike.findIndex((each) => each.id === device.id));
}

export function model(nodes: Iterable<NodeRow>, grouping: Grouping): Model {
  const sorted = [...nodes].sort((a, b) => byName(a.name, b.name));
  const groups = new Map<string, NodeRow[]>();
  for (const node of sorted) {
    const title = titleOf(node, grouping);
    const members = groups.get(title);
    if (members === undefined) groups.set(title, [node]);
    else members.push(node);
  }
  const ordered = [...groups].sort(([a], [b]) => byName(a, b));
  return {
    groups: ordered.map(([title, members]) => ({ title: title === "" ? "" : counted(title, members), nodes: members.map((node) => ({ name: headOf(node), cells: node.devices.length })) })),
    cells: ordered.flatMap(([, members]) => members.flatMap((node) => node.devices.map((device) => ({ node, device })))),
  };
}

/** The name above the cells; a closed node has a mark. */
const headOf = (node: NodeRow): string => (node.intent === "open" ? node.name : `${node.name} ${glyph("cordoned")}`);

function counted(title: string, nodes: readonly NodeRow[]): string {
  const devices = nodes.flatMap((node) => node.devices);
  return `${title} · ${plural(devices.length, "GPU")}, ${devices.filter((device) => device.cell === "free").length} free`;
}

function titleOf(node: NodeRow, grouping: Grouping): string {
  if (grouping === "none") return "";
  if (grouping === "rack") return node.labels?.rack ? `rack ${node.labels.rack}` : "no label rack";
  if (grouping === "model") return [...new Set(node.devices.map((device) => shortModel(device.model)))].sort().join(", ") || "no GPU";
  if (grouping === "tenant") return tenantOf(node);
  return node.state === "online" && node.intent !== "open" ? node.intent : node.state;
}

function tenantOf(node: NodeRow): string {
  const allocated = node.devices.filter((device) => device.cell === "busy" || device.cell === "held_idle");
  const names = new Set(allocated.flatMap((device) => ((device.tenants ?? []).length > 0 ? (device.tenants ?? []) : [OTHERS])));
  return names.size === 0 ? "no tenant" : names.size === 1 ? ([...names][0] ?? "") : "several tenants";
}

/** Return owners by position, those with most GPUs first; the first have their own colours. */
export function owners(cells: readonly FleetCell[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const { node, device } of cells) {
    const name = owner(device, node);
    if (name !== null && name !== OTHERS) counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const sorted = [...counts].sort(([a, x], [b, y]) => y - x || byName(a, b));
  return new Map(sorted.map(([name], at) => [name, at]));
}

export function paints(cells: readonly FleetCell[], fill: Fill, light: Spotlight, gpu: string | null = null): CellPaint[] {
  const places = fill === "owner" ? owners(cells) : null;
  const isAll = isPlain(light);
  return cells.map((cell) => {
    const { node, device } = cell;
    const { kind } = appearance(device, node);
    const isHeld = device.cell === "busy" || device.cell === "held_idle";
    const name = owner(device, node);
    return {
      kind,
      value: fill === "state" || fill === "owner" ? undefined : kind === "unknown" ? null : value(device, fill, node),
      owner: places === null ? undefined : name === null ? null : (places.get(name) ?? Infinity),
      isDim: !isAll && !fits(cell, light),
      isLit: (light.job !== null && (device.jobs ?? []).includes(light.job)) || (gpu !== null && gpu === nameOf(cell)),
      isHeld,
      first: kind === "unknown" ? "no data" : holder(device, isHeld),
      // Short enough for a cell: held, by others.
      second: kind === "unknown" ? "" : second(cell, fill, name === OTHERS ? "by others" : name),
      third: kind === "unknown" ? "" : jobName(cell) || instance(device),
    };
  });
}

function holder(device: DeviceRow, isHeld: boolean): string {
  const jobs = device.jobs ?? [];
  if (jobs.length > 0) return `#${jobs[0]}${jobs.length > 1 ? ` +${jobs.length - 1}` : ""}`;
  return isHeld ? "held" : device.cell;
}

function second({ node, device }: FleetCell, fill: Fill, name: string | null): string {
  if (fill === "state") return name ?? formatReading(device, "temperature");
  return fill === "owner" ? (name ?? "") : formatReading(device, fill, node);
}

/** Return the size of a MIG instance, or "" for a GPU. */
function instance(device: DeviceRow): string {
  return /MIG \S+$/.exec(device.model)?.[0] ?? "";
}

function jobName({ node, device }: FleetCell): string {
  const [first] = device.jobs ?? [];
  return first === undefined ? "" : (node.holders?.[first]?.name ?? "");
}

/** Return the tooltip lines of a cell, most important first. */
export function describeCell({ node, device }: FleetCell): string[] {
  const { words } = appearance(device, node);
  const lines = [`${node.name} · GPU ${device.index} · ${shortModel(device.model)}`, `${words}${idleFor(device)}`];
  for (const id of (device.jobs ?? []).slice(0, 3)) {
    const job = node.holders?.[id];
    lines.push(job ? `job ${id} ${job.name} · ${job.user}, ${job.tenant}` : `job ${id}`);
  }
  if (owner(device, node) === OTHERS) lines.push("held by another tenant");
  if (device.reading === null || node.state === "lost") return [...lines, whyUnknown(device, node, "state")];
  const memory = device.memory_mb === null ? "" : ` of ${(device.memory_mb / 1024).toFixed(0)} GiB`;
  const parts = [`${formatReading(device, "utilisation")} used`, `${formatReading(device, "memory")}${memory}`, formatReading(device, "temperature"), formatReading(device, "power")];
  lines.push(parts.join(" · "));
  if (parts.some((text) => text.startsWith("n/a"))) lines.push(whyUnknown(device, node, "power"));
  return lines;
}

// The columns of the fleet table and their sort keys.
import { type Child, h } from "../../ui/dom";
import { badge } from "../../ui/states";
import { byName, jobLink, named, nodeLink, shortModel, tenantLink } from "../../ui/pieces";
import { type Fill, whyUnknown, idleFor, appearance as appearance, owner, formatReading, secondsToFree } from "./looks";
import type { FleetCell } from "./model";

interface FleetColumn {
  label: string;
  /** Its name in the URL. */
  sort: string;
  isDownFirst?: boolean;
  className?: string;
  /** null: unknown or none. */
  by(cell: FleetCell): string | number | null;
  cell(cell: FleetCell): Child | Child[];
}

export const COLUMNS: readonly FleetColumn[] = [
  { label: "Node", sort: "node", by: ({ node }) => node.name, cell: ({ node }) => nodeLink(node.name) },
  { label: "GPU", sort: "gpu", by: ({ device }) => device.index, cell: ({ device }) => device.index, className: "num" },
  { label: "Model", sort: "model", by: ({ device }) => shortModel(device.model), cell: ({ device }) => shortModel(device.model) },
  { label: "State", sort: "state", by: ({ node, device }) => appearance(device, node).words, cell: ({ node, device }) => badge(appearance(device, node).kind, appearance(device, node).words + idleFor(device)) },
  { label: "Jobs", sort: "jobs", by: ({ device }) => device.jobs?.[0] ?? null, cell: ({ device }) => (device.jobs ?? []).flatMap((id) => [jobLink(id), " "]) },
  { label: "Tenants", sort: "tenants", by: ({ device }) => device.tenants?.[0] ?? null, cell: ({ device }) => (device.tenants ?? []).flatMap((name) => [tenantLink(name), " "]) },
  { label: "Owner", sort: "owner", by: ({ node, device }) => owner(device, node), cell: ({ node, device }) => named(owner(device, node) ?? "") },
  reading("Utilisation", "utilisation", ({ device }) => device.reading?.utilisation_percent),
  reading("Memory", "memory", ({ device }) => device.reading?.memory_used_mb),
  reading("Temperature", "temperature", ({ device }) => device.reading?.temperature_celsius),
  reading("Power", "power", ({ device }) => device.reading?.power_watts),
  { ...reading("Time to free", "until", ({ node, device }) => secondsToFree(device, node)), isDownFirst: false },
];

/** A column of readings; unknown for a lost node. */
function reading(label: string, fill: Fill, value: (cell: FleetCell) => number | null | undefined): FleetColumn {
  const isKnown = ({ node }: FleetCell): boolean => node.state !== "lost";
  return {
    label,
    sort: fill,
    isDownFirst: true,
    className: "num",
    by: (cell) => (isKnown(cell) ? (value(cell) ?? null) : null),
    cell: (cell) => {
      const text = isKnown(cell) ? formatReading(cell.device, fill, cell.node) : "n/a";
      return text === "n/a" ? h("span", { class: "na", title: whyUnknown(cell.device, cell.node, fill) }, text) : text;
    },
  };
}

/** Sort by `power` or `-power`; unknown values come last in both, and equal ones keep
 * their order. Null for an unknown column. */
export function inOrder(cells: readonly FleetCell[], sort: string): FleetCell[] | null {
  const column = COLUMNS.find((each) => each.sort === sort.replace(/^-/, ""));
  if (column === undefined) return null;
  const sign = sort.startsWith("-") ? -1 : 1;
  const keyed = cells.map((cell) => ({ cell, key: column.by(cell) }));
  keyed.sort(({ key: a }, { key: b }) => {
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : byName(String(a), String(b)));
  });
  return keyed.map(({ cell }) => cell);
}

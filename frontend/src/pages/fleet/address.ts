// The Fleet's URL: grouping, fill, highlight and selected GPU.
import { FILLS, type Fill } from "./looks";
import { sortOf } from "../../ui/sorting";
import { shortModel } from "../../ui/pieces";
import type { FleetCell } from "./model";

export type Grouping = "none" | "rack" | "model" | "tenant" | "state";
export const GROUPINGS: readonly Grouping[] = ["none", "rack", "model", "tenant", "state"];

/** Criteria of highlighted cells; all set criteria must match. */
export interface Spotlight {
  cell: string | null;
  job: number | null;
  tenant: string | null;
  user?: string | null;
  health?: string | null;
  node?: string | null;
  state?: string | null;
  model?: string | null;
}

export interface Address {
  group: Grouping;
  fill: Fill;
  isTable: boolean;
  /** The name of the chosen GPU. */
  gpu: string | null;
  /** Table order: a column's name, with - for descending; "": grouped as on the map. */
  sort: string;
  light: Spotlight;
}

const NAMES = ["cell", "tenant", "user", "health", "node", "state", "model"] as const;

export function readAddress(search: string): Address {
  const params = new URLSearchParams(search);
  const job = Number(params.get("job"));
  const light: Spotlight = { cell: null, tenant: null, job: Number.isInteger(job) && job > 0 ? job : null };
  for (const name of NAMES) light[name] = params.get(name) || null;
  return {
    group: GROUPINGS.find((each) => each === params.get("group")) ?? "none",
    fill: FILLS.find((each) => each === params.get("fill")) ?? "state",
    isTable: params.get("view") === "table",
    gpu: params.get("gpu") || null,
    sort: sortOf(search),
    light,
  };
}

/** Return the query of this address, without defaults; other parameters stay. */
export function writeAddress(now: Address, search: string): string {
  const params = new URLSearchParams(search);
  const set = (name: string, value: string | number | null, usual: string | null = null): void => {
    if (value === null || value === usual) params.delete(name);
    else params.set(name, String(value));
  };
  set("group", now.group, "none");
  set("fill", now.fill, "state");
  set("view", now.isTable ? "table" : null);
  set("gpu", now.gpu);
  set("sort", now.sort, "");
  set("job", now.light.job);
  for (const name of NAMES) set(name, now.light[name] ?? null);
  // Keep the slash between node and GPU readable.
  const query = params.toString().replaceAll("%2F", "/");
  return query === "" ? "" : `?${query}`;
}

export function isPlain(light: Spotlight): boolean {
  return light.job === null && NAMES.every((name) => !light[name]);
}

export function fits({ node, device }: FleetCell, light: Spotlight): boolean {
  const jobs = device.jobs ?? [];
  return (
    (!light.cell || device.cell === light.cell) &&
    (light.job === null || jobs.includes(light.job)) &&
    (!light.tenant || (device.tenants ?? []).includes(light.tenant)) &&
    (!light.user || jobs.some((id) => node.holders?.[id]?.user === light.user)) &&
    (!light.health || device.health === light.health) &&
    (!light.node || node.name === light.node) &&
    (!light.model || device.model === light.model) &&
    (!light.state || node.state === light.state || node.intent === light.state)
  );
}

/** Describe a highlight. */
export function describeSpotlight(light: Spotlight): string {
  const parts = [
    light.job !== null && `GPUs of job ${light.job}`,
    light.tenant && `of tenant ${light.tenant}`,
    light.user && `of ${light.user}`,
    light.cell && light.cell.replaceAll("_", " "),
    light.health && `${light.health} GPUs`,
    light.model && shortModel(light.model),
    light.node && `node ${light.node}`,
    light.state && `nodes ${light.state}`,
  ];
  return parts.filter(Boolean).join(", ");
}

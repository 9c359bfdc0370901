// The appearance of a device: its kind, label and value for each fill.
import { CELL_WORDS, mib } from "../../ui/pieces";
import { duration, serverNow } from "../../ui/time";
import type { DeviceRow, NodeRow } from "../../live/topics";

export type Kind = "busy" | "held-idle" | "free" | "unavailable" | "hot" | "failed" | "quarantined" | "foreign" | "dirty" | "unknown";
export type Fill = "state" | "utilisation" | "memory" | "temperature" | "power" | "owner" | "until";
export const FILLS: readonly Fill[] = ["state", "utilisation", "memory", "temperature", "power", "owner", "until"];

export interface Look {
  kind: Kind;
  words: string;
}

const BY_HEALTH: Record<string, [Kind, string]> = {
  hot: ["hot", "hot"],
  degraded: ["failed", "had a hardware error"],
  dirty: ["dirty", "dirty: memory is still in use"],
  foreign: ["foreign", "in use by a foreign process"],
  quarantined: ["quarantined", "quarantined"],
  lost: ["unknown", "not seen by its node"],
};

/** Return the appearance of a device; the most serious condition wins. */
export function appearance(device: DeviceRow, node: Pick<NodeRow, "state" | "intent">): Look {
  if (node.state === "lost") return { kind: "unknown", words: "no data: its node is lost" };
  const ill = BY_HEALTH[device.health];
  const cell = CELL_WORDS[device.cell] ?? device.cell;
  if (ill !== undefined) {
    const text = device.health_note ? `${ill[1].split(":")[0]}: ${device.health_note}` : ill[1];
    return { kind: ill[0], words: device.cell === "unavailable" ? text : `${text}, ${cell}` };
  }
  if (node.state !== "online" && device.cell === "unavailable") return { kind: "unknown", words: `its node is ${node.state}` };
  if (device.cell === "unavailable") return { kind: "unavailable", words: node.intent === "open" ? "unavailable" : `its node is ${node.intent}` };
  return { kind: device.cell === "held_idle" ? "held-idle" : device.cell, words: cell };
}

const COOL = 25;
const HOT = 90;
/** The power at the end of the ramp: the maximum of today's GPUs. */
export const MAX_WATTS = 700;
const DAY_MINUTES = 1440;

/** Return the position on the ramp, 0 to 1, or null if unknown. */
export function value(device: DeviceRow, fill: Fill, node?: NodeRow): number | null {
  if (fill === "until") return until(device, node);
  const reading = device.reading;
  if (reading === null || fill === "state" || fill === "owner") return null;
  if (fill === "utilisation") return part(reading.utilisation_percent, 100);
  if (fill === "memory") return part(reading.memory_used_mb, device.memory_mb);
  if (fill === "power") return part(reading.power_watts, MAX_WATTS);
  const { temperature_celsius: degrees } = reading;
  return degrees === null ? null : Math.min(1, Math.max(0, (degrees - COOL) / (HOT - COOL)));
}

function part(value: number | null, total: number | null): number | null {
  return value === null || !total ? null : Math.min(1, Math.max(0, value / total));
}

const isHeld = (device: DeviceRow): boolean => device.cell === "busy" || device.cell === "held_idle";

/** Return the seconds until its last job must end; 0 if free, null if a job has no limit or is hidden. */
export function secondsToFree(device: DeviceRow, node?: NodeRow): number | null {
  if (!isHeld(device)) return device.cell === "free" ? 0 : null;
  const ends = (device.jobs ?? []).map((id) => Date.parse(node?.holders?.[id]?.ends_at ?? ""));
  if (ends.length === 0 || ends.some(Number.isNaN)) return null;
  return Math.max(0, (Math.max(...ends) - serverNow()) / 1000);
}

/** Minutes on a logarithmic scale. */
function until(device: DeviceRow, node?: NodeRow): number | null {
  const seconds = secondsToFree(device, node);
  return seconds === null ? null : Math.min(1, Math.log2(1 + seconds / 60) / Math.log2(1 + DAY_MINUTES));
}

/** Format the value for large cells and the table. */
export function formatReading(device: DeviceRow, fill: Fill, node?: NodeRow): string {
  if (fill === "until") {
    const seconds = secondsToFree(device, node);
    return seconds === null ? "n/a" : seconds === 0 ? "free" : `within ${atMost(seconds)}`;
  }
  const reading = device.reading;
  if (reading === null) return "n/a";
  const show = (n: number | null, unit: string): string => (n === null ? "n/a" : `${Math.round(n)}${unit}`);
  if (fill === "memory") return mib(reading.memory_used_mb);
  if (fill === "power") return show(reading.power_watts, " W");
  return fill === "temperature" ? show(reading.temperature_celsius, " °C") : show(reading.utilisation_percent, " %");
}

/** Format a duration in one unit, rounded up. */
function atMost(seconds: number): string {
  if (seconds < 3600) return `${Math.ceil(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.ceil(seconds / 3600)} h` : `${Math.ceil(seconds / 86_400)} d`;
}

/** Return why a value is unknown. */
export function whyUnknown(device: DeviceRow, node: Pick<NodeRow, "state">, fill: Fill): string {
  if (node.state === "lost") return "n/a: its node is lost";
  if (fill === "until") return isHeld(device) ? "n/a: its job has no time limit, or you cannot see it" : "n/a: it accepts no jobs now";
  return device.reading === null ? "n/a: its agent has not read it yet" : "n/a: its driver does not report it";
}

/** Return the holder: a user, several, another tenant, or null. */
export function owner(device: DeviceRow, node: NodeRow): string | null {
  if (!isHeld(device)) return null;
  const users = new Set((device.jobs ?? []).map((id) => node.holders?.[id]?.user ?? "?"));
  if (users.size === 0) return OTHERS;
  return users.size === 1 ? ([...users][0] ?? OTHERS) : "several";
}

export const OTHERS = "another tenant";

export function idleFor(device: DeviceRow): string {
  return device.idle_since ? ` for ${duration((serverNow() - Date.parse(device.idle_since)) / 1000)}` : "";
}

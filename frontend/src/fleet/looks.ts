// What one device looks like and reads as: its kind, its words, and its value in each way of filling cells.
import { CELL_WORDS } from "../views/pieces";
import type { DeviceRow, NodeRow } from "../topics";

export type Kind = "busy" | "held-idle" | "free" | "unavailable" | "hot" | "quarantined" | "dirty" | "unknown";
export type Fill = "state" | "utilisation" | "memory" | "temperature";
export const FILLS: readonly Fill[] = ["state", "utilisation", "memory", "temperature"];

export interface Look {
  kind: Kind;
  words: string;
}

const BY_HEALTH: Record<string, [Kind, string]> = {
  hot: ["hot", "hot"],
  degraded: ["hot", "degraded"],
  dirty: ["dirty", "dirty: memory is still in use"],
  foreign: ["dirty", "in use by a foreign process"],
  quarantined: ["quarantined", "quarantined"],
  lost: ["unknown", "not seen by its node"],
};

/** The most serious thing to say of a device comes first. */
export function look(device: DeviceRow, node: Pick<NodeRow, "state" | "intent">): Look {
  if (node.state === "lost") return { kind: "unknown", words: "no data: its node is lost" };
  const ill = BY_HEALTH[device.health];
  const cell = CELL_WORDS[device.cell] ?? device.cell;
  if (ill !== undefined) {
    const said = device.health_note ? `${ill[1].split(":")[0]}: ${device.health_note}` : ill[1];
    return { kind: ill[0], words: device.cell === "unavailable" ? said : `${said}, ${cell}` };
  }
  if (node.state !== "online" && device.cell === "unavailable") return { kind: "unknown", words: `its node is ${node.state}` };
  if (device.cell === "unavailable") return { kind: "unavailable", words: node.intent === "open" ? "unavailable" : `its node is ${node.intent}` };
  return { kind: device.cell === "held_idle" ? "held-idle" : device.cell, words: cell };
}

const COOL = 25;
const HOT = 90;

/** 0 to 1 along the ramp, or null where it is not known. */
export function value(device: DeviceRow, fill: Fill): number | null {
  const reading = device.reading;
  if (reading === null || fill === "state") return null;
  if (fill === "utilisation") return part(reading.utilisation_percent, 100);
  if (fill === "memory") return part(reading.memory_used_mb, device.memory_mb);
  const { temperature_celsius: degrees } = reading;
  return degrees === null ? null : Math.min(1, Math.max(0, (degrees - COOL) / (HOT - COOL)));
}

function part(value: number | null, whole: number | null): number | null {
  return value === null || !whole ? null : Math.min(1, Math.max(0, value / whole));
}

/** The value in words, for big cells and the table. */
export function reads(device: DeviceRow, fill: Fill): string {
  const reading = device.reading;
  if (reading === null) return "n/a";
  const show = (n: number | null, unit: string): string => (n === null ? "n/a" : `${Math.round(n)}${unit}`);
  if (fill === "memory") return reading.memory_used_mb === null ? "n/a" : `${(reading.memory_used_mb / 1024).toFixed(1)} GB`;
  return fill === "temperature" ? show(reading.temperature_celsius, "°") : show(reading.utilisation_percent, "%");
}

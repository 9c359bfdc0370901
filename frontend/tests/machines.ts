// Nodes as the feed tells of them, for tests.
import type { Cell, DeviceRow, NodeRow } from "../src/live/topics";

export function node(at: number, devices = 8): NodeRow {
  const cells: Cell[] = ["busy", "held_idle", "free", "unavailable"];
  return {
    name: `gpu-${at}`, state: "online", intent: "open", intent_note: "", pretend: true, cpu_cores: 96, cpu_cores_free: 4, memory_mb: 1 << 20,
    memory_mb_free: 1 << 19, last_seen_at: "2026-01-31T08:00:00Z", labels: {}, taints: [], hostname: `gpu-${at}`, agent_version: "1", driver_version: "1", jobs: [at],
    devices: Array.from({ length: devices }, (_, index): DeviceRow => ({
      id: at * 100 + index, index, uuid: `GPU-${at}-${index}`, model: at % 2 ? "NVIDIA H100" : "NVIDIA A100", memory_mb: 81920,
      health: index === 7 ? (["ok", "hot", "dirty", "quarantined", "lost"][at % 5] ?? "ok") : "ok", cell: cells[(at + index) % 4] ?? "free", held: "exclusive",
      shared_mb: 0, jobs: [at], tenants: ["red"],
      reading: index === 6 ? null : { utilisation_percent: (at * 7 + index) % 101, memory_used_mb: 40960, temperature_celsius: 61, power_watts: 400, read_at: null },
    })),
  };
}

export const nodes = (count: number): NodeRow[] => Array.from({ length: count }, (_, at) => node(at));

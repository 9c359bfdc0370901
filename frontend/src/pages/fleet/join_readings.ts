// Join nodes with readings: two topics, as readings change every second and are the same for all viewers.
import type { TopicState } from "../../live/store";
import type { DeviceRow, NodeRow, Reading, ReadingsRow } from "../../live/topics";

/** Topics whose rows are joined with those of another. */
export const COMPANION: Readonly<Record<string, string>> = { nodes: "readings" };

/** Join only changed rows, so that others keep their identity. */
export class Joiner {
  private cache = new Map<string, { node: object; read: object | undefined; row: NodeRow }>();

  join(nodes: TopicState, readings: TopicState): TopicState {
    const next = new Map<string, { node: object; read: object | undefined; row: NodeRow }>();
    for (const [name, node] of nodes.rows) {
      const read = readings.rows.get(name);
      const old = this.cache.get(name);
      const isSame = old !== undefined && old.node === node && old.read === read;
      next.set(name, isSame ? old : { node, read, row: joined(node as NodeRow, read as ReadingsRow | undefined) });
    }
    this.cache = next;
    return { ...nodes, hasRows: nodes.hasRows && readings.hasRows, rows: new Map([...next].map(([name, { row }]) => [name, row])) };
  }
}

function joined(node: NodeRow, readings: ReadingsRow | undefined): NodeRow {
  const devices = node.devices.map((device): DeviceRow => ({ ...device, reading: readings === undefined ? null : reading(readings, device.id) }));
  return { ...node, last_seen_at: readings?.last_seen_at ?? null, devices };
}

function reading(readings: ReadingsRow, device: number): Reading | null {
  const at = readings.devices.indexOf(device);
  const readAt = readings.read_at[at];
  if (at < 0 || readAt == null) return null;
  return {
    utilisation_percent: readings.utilisation_percent[at] ?? null,
    memory_used_mb: readings.memory_used_mb[at] ?? null,
    temperature_celsius: readings.temperature_celsius[at] ?? null,
    power_watts: readings.power_watts[at] ?? null,
    read_at: readAt,
  };
}

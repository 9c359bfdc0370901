// Nodes with their readings: two topics, because readings change each second and are the same for everybody.
import type { TopicState } from "../../live/store";
import type { DeviceRow, NodeRow, Reading, ReadingsRow } from "../../live/topics";

/** A topic of which views see the rows joined with those of another. */
export const COMPANION: Readonly<Record<string, string>> = { nodes: "readings" };

/** Joins again only what has changed, so that unchanged rows keep their identity. */
export class Joiner {
  private known = new Map<string, { node: object; read: object | undefined; row: NodeRow }>();

  join(nodes: TopicState, readings: TopicState): TopicState {
    const fresh = new Map<string, { node: object; read: object | undefined; row: NodeRow }>();
    for (const [name, node] of nodes.rows) {
      const read = readings.rows.get(name);
      const old = this.known.get(name);
      const isSame = old !== undefined && old.node === node && old.read === read;
      fresh.set(name, isSame ? old : { node, read, row: joined(node as NodeRow, read as ReadingsRow | undefined) });
    }
    this.known = fresh;
    return { ...nodes, known: nodes.known && readings.known, rows: new Map([...fresh].map(([name, { row }]) => [name, row])) };
  }
}

function joined(node: NodeRow, read: ReadingsRow | undefined): NodeRow {
  const devices = node.devices.map((device): DeviceRow => ({ ...device, reading: read === undefined ? null : reading(read, device.id) }));
  return { ...node, last_seen_at: read?.last_seen_at ?? null, devices };
}

function reading(read: ReadingsRow, device: number): Reading | null {
  const at = read.devices.indexOf(device);
  const readAt = read.read_at[at];
  if (at < 0 || readAt == null) return null;
  return {
    utilisation_percent: read.utilisation_percent[at] ?? null,
    memory_used_mb: read.memory_used_mb[at] ?? null,
    temperature_celsius: read.temperature_celsius[at] ?? null,
    power_watts: read.power_watts[at] ?? null,
    read_at: readAt,
  };
}

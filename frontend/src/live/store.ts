// The state of a topic: pure functions from a state and a message to the next state.
import type { Message, Row } from "./topics";

export interface TopicState {
  /** waiting: no snapshot yet on this connection; gap: a delta was missed. Known rows stay visible. */
  readonly status: "waiting" | "ready" | "gap" | "error";
  readonly seq: number;
  readonly rows: ReadonlyMap<string, Row>;
  readonly error: string | null;
  /** Whether rows were ever received; until then nothing is drawn. */
  readonly hasRows: boolean;
}

export const NOTHING: TopicState = { status: "waiting", seq: 0, rows: new Map(), error: null, hasRows: false };

export type TopicMessage = Extract<Message, { topic: string }>;

/** Return the next state; on status "gap" the caller must request a snapshot. */
export function apply(state: TopicState, message: TopicMessage): TopicState {
  if ("error" in message) {
    return { ...state, status: "error", rows: new Map(), error: message.error };
  }
  if ("snapshot" in message) {
    const rows = new Map(Object.entries(message.snapshot));
    return { status: "ready", seq: message.seq, rows: keepEqual(state.rows, rows), error: null, hasRows: true };
  }
  if (state.status !== "ready") return state;
  if (message.seq !== state.seq + 1) return { ...state, status: "gap" };
  const rows = new Map(state.rows);
  for (const key of message.gone ?? []) rows.delete(key);
  for (const [key, row] of Object.entries(message.set ?? {})) rows.set(key, row);
  for (const [key, changes] of Object.entries(message.patch ?? {})) rows.set(key, patched(rows.get(key), changes));
  return { ...state, seq: message.seq, rows };
}

/** Merge changes into an object; other values are replaced. */
function patched(row: unknown, changes: object): object {
  if (!isObject(row)) return changes;
  const result: Record<string, unknown> = { ...row };
  for (const [name, value] of Object.entries(changes)) result[name] = isObject(value) ? patched(result[name], value) : value;
  return result;
}

function isObject(value: unknown): value is object {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Wait for a snapshot after a lost connection or an unsubscription, keeping known rows. */
export function unsettled(state: TopicState): TopicState {
  return state.status === "error" ? NOTHING : { ...state, status: "waiting" };
}

/** Keep the identity of unchanged rows, so that they are not redrawn. */
function keepEqual(previous: ReadonlyMap<string, Row>, current: Map<string, Row>): Map<string, Row> {
  for (const [key, row] of current) {
    const old = previous.get(key);
    if (old !== undefined && JSON.stringify(old) === JSON.stringify(row)) current.set(key, old);
  }
  return current;
}

// The rows of topics `endpoints` and `endpoint:<id>` (frontend/pages/endpoints/rows.py), and how their numbers are written.

export interface EndpointRow {
  name: string;
  tenant: string;
  state: string;
  type: string;
  protocol: string;
  /** Why a replica could not start, or ended early; empty without a problem. */
  problem: string;
  max_queue: number;
  max_replicas: number;
  cold_start_seconds: number | null;
  prewarming: boolean;
  /** Pre-warming wants a replica now; beyond its budget it wants none. */
  is_kept_warm: boolean;
  is_over_budget: boolean;
  /** The chance of a request in the next minute, and the one from which a replica is kept; null: not in force. */
  request_chance: number | null;
  keep_from_chance: number | null;
  /** Requests after a pause in the last six weeks, that met a warm replica or none. */
  prewarming_hits: number;
  prewarming_misses: number;
  cold_starts_avoided: number;
  gpu_hours_wasted: number;
  queued: number;
  oldest_at: string | null;
  running: number;
  replicas: number;
  warm: number;
  /** Of completed requests in the window, as the counts below. */
  p50_seconds: number | null;
  p95_seconds: number | null;
  p99_seconds: number | null;
  completed: number;
  failed: number;
  expired: number;
  cancelled: number;
  refused: number;
  /** Of all users within a day; `costs` has the highest of them. */
  cost: number;
  cost_users: number;
  costs: [user: string, cost: number][];
}

/** Requests in batches of `from` to `to` requests, by why these were flushed. */
export interface BatchRow {
  from: number;
  to: number;
  reasons: Record<string, number>;
}

export interface ReplicaRow {
  job_id: number;
  job_state: string | null;
  created_at: string;
  warm_at: string | null;
  is_draining: boolean;
  cold_start_seconds: number | null;
  running: number;
  used_at: string | null;
}

export interface CostRow {
  user: string;
  cost: number;
  requests: number;
}

/** Why batches are flushed, in the order of the bars, with the meaning. */
export const REASONS: Readonly<Record<string, string>> = {
  size: "the batch was full",
  wait: "its oldest request had waited long enough",
  idle: "the replica was idle, and no other request was expected",
  memory: "one more request would not have fitted the GPU memory",
  drain: "the endpoint drains",
};

/** Format a short duration: 8 ms, 1.25 s, 40 s. */
export function latency(seconds: number): string {
  if (seconds < 0.9995) return `${seconds < 0.00995 ? Number((seconds * 1000).toFixed(1)) : Math.round(seconds * 1000)} ms`;
  return seconds < 10 ? `${Number(seconds.toFixed(2))} s` : `${Math.round(seconds).toLocaleString("en")} s`;
}

export function amount(value: number): string {
  return value.toLocaleString("en", { maximumFractionDigits: 2 });
}

export const endpointHref = (row: Pick<EndpointRow, "name" | "tenant">): string => `/endpoints/${encodeURIComponent(row.tenant)}/${encodeURIComponent(row.name)}/`;

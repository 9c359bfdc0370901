// Types of the server's messages (docs/live.md).
import type { CELLS, WAIT_GROUPS } from "../ui/constants";

export type Row = object;
export type Rows = Record<string, Row>;

export type Message =
  | { topic: string; seq: number; snapshot: Rows }
  | { topic: string; seq: number; set?: Rows; patch?: Rows; gone?: string[] }
  | { topic: string; error: string }
  | { alive: string; cycle_age_seconds: number | null; answer?: boolean; blind_seconds?: number };

export type Cell = (typeof CELLS)[number];

export interface OverviewStatus {
  total_nodes: number;
  online_nodes: number;
  total_gpus: number;
  busy_gpus: number;
  held_idle_gpus: number;
  free_gpus: number;
  unavailable_gpus: number;
  running_jobs: number;
  pending_jobs: number;
  pretend_nodes: number;
  oldest_wait_seconds: number | null;
  p90_wait_seconds: number | null;
  cycle_is_alive: boolean;
}

export interface LargestRow {
  model: string;
  gpus: number;
  on_one_node: number;
}

export interface AttentionPart {
  node: string | null;
  job: number | null;
  words: string;
  since: string | null;
}

export interface AttentionRow {
  kind: string;
  severity: "red" | "amber" | "note";
  count: number;
  sentence: string;
  href: string | null;
  parts: AttentionPart[];
  /** The number of further parts. */
  more: number;
}

export interface NextRow {
  id: number;
  name: string;
  gpu_count: number;
  place: number;
  sentence: string | null;
}

export interface WaitingRow {
  code: string;
  jobs: number;
  gpus: number;
  example_id: number | null;
  example_sentence: string | null;
}

/** `readings`: of one node, in columns in the order of `devices`, which has their ids. */
export interface ReadingsRow {
  last_seen_at: string | null;
  devices: number[];
  read_at: (string | null)[];
  utilisation_percent: (number | null)[];
  memory_used_mb: (number | null)[];
  temperature_celsius: (number | null)[];
  power_watts: (number | null)[];
}

export interface Reading {
  utilisation_percent: number | null;
  memory_used_mb: number | null;
  temperature_celsius: number | null;
  power_watts: number | null;
  read_at: string | null;
}

export interface DeviceRow {
  id: number;
  index: number;
  uuid: string;
  model: string;
  memory_mb: number | null;
  health: string;
  /** The problem in words; empty if healthy. */
  health_note?: string | null;
  /** Slowed down by its hardware: it gets no new jobs. */
  is_slowed?: boolean;
  cell: Cell;
  held: string | null;
  shared_mb: number | null;
  /** For held but idle devices. */
  idle_since?: string | null;
  jobs: number[] | null;
  tenants: string[] | null;
  reading: Reading | null;
}

/** `strip`: the GPUs of one node, in columns. */
export interface StripRow {
  indexes: number[];
  cells: Cell[];
}

export interface HolderRow {
  name: string;
  user: string;
  tenant: string;
  gpu_count: number;
  /** The latest end; null without a time limit. */
  ends_at: string | null;
}

export interface NodeRow {
  name: string;
  state: string;
  intent: string;
  intent_note: string | null;
  pretend: boolean;
  cpu_cores: number | null;
  cpu_cores_free: number | null;
  memory_mb: number | null;
  memory_mb_free: number | null;
  last_seen_at: string | null;
  labels: Record<string, string> | null;
  taints: { key: string; value: string; effect: string }[];
  hostname: string | null;
  agent_version: string | null;
  driver_version: string | null;
  /** Container runtimes that answer there, and their versions. */
  runtimes?: Record<string, string> | null;
  jobs: number[] | null;
  /** The holders of `jobs`, by job id. */
  holders?: Record<string, HolderRow> | null;
  devices: DeviceRow[];
}

export interface Reason {
  code: string;
  sentence: string;
  next_step: string | null;
  since?: string | null;
}

export interface QueueRow {
  id: number;
  name: string;
  tenant: string;
  user: string;
  state: string;
  gpu_count: number;
  gpu_model: string | null;
  gpu_memory_mb: number | null;
  priority: number | null;
  /** Among the waiting jobs of all tenants, from 1. */
  position: number | null;
  gpus_ahead: number;
  /** For arrays: the number of waiting elements. */
  elements?: number | null;
  group: WaitGroup;
  submitted_at: string;
  reason: Reason | null;
}

export type WaitGroup = (typeof WAIT_GROUPS)[number];

export interface QueueTotal {
  /** Of all tenants. */
  jobs: number;
  gpus: number;
  /** In this window. */
  shown: number;
  /** Visible jobs that match the filter, in all windows. */
  matching: number;
  /** As rows: an array counts as one. */
  rows: number;
  groups: { group: WaitGroup; rows: number; jobs: number; gpus: number }[];
  /** The window's ids in order. */
  order: number[];
}

export interface JobRow {
  id: number;
  name: string;
  tenant: string;
  user: string;
  state: string;
  reason: Reason | string | null;
  gpu_count: number;
  nodes: string[] | null;
  submitted_at: string;
  started_at: string | null;
  ended_at: string | null;
  exit_code: number | null;
  attempt: number;
  array?: { count: number; max_parallel: number | null; remaining: number; by_state: Record<string, number> } | null;
}

export interface JobDetail extends JobRow {
  priority: number;
  gpu_model: string | null;
  gpu_memory_mb: number | null;
  cpu_cores: number;
  memory_mb: number;
  max_runtime_minutes: number | null;
  max_runtime_source?: string | null;
  signal: number | null;
  devices: { node: string; index: number | null; model: string }[];
  array_id?: number | null;
  array_index?: number | null;
}

export interface EventRow {
  id: number;
  at: string;
  kind: string;
  attempt: number | null;
  actor: string | null;
  sentence: string | null;
}

export interface RankRow {
  rank: number;
  node: string;
  state: string;
  reason: string | null;
  exit_code: number | null;
  signal: number | null;
  peak_memory_mb: number | null;
  peak_memory_of: string | null;
  devices: { index: number | null; model: string }[];
}

export interface AttemptRow {
  number: number;
  state: string;
  reason: string | null;
  sentence: string | null;
  exit_code: number | null;
  signal: number | null;
  scheduled_at: string | null;
  started_at: string | null;
  ended_at: string | null;
  ranks: RankRow[];
}

export interface LogRow {
  attempt: number;
  rank: number;
  size: number;
}

/** An automatic action or the result of a job. */
export interface DoingRow {
  key: string;
  at: string;
  kind: string;
  severity: "red" | "amber" | "info";
  sentence: string;
  href: string | null;
  tenant: string | null;
}

export interface NoticeRow extends DoingRow {
  is_mine: boolean;
}

export interface NoticesState {
  unread: number;
  seen_until: string | null;
}

export interface TenantRow {
  name: string;
  weight: number;
  tier: string | number | null;
  gpus_held: number;
  jobs_live: number;
  /** Including held jobs. */
  jobs_waiting: number;
  /** Jobs that only wait for capacity or quota. */
  jobs_asking: number;
  guaranteed_gpus: number | null;
  max_gpus: number | null;
  share: number | null;
  usage_gpu_hours: number | null;
}

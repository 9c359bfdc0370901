// What each action asks for, as the live rows show it: whether it is so yet, who has confirmed it, and what is in its way.
import type { DeviceRow, JobDetail, NodeRow, Row } from "./topics";

export type Rows = ReadonlyMap<string, Row>;

/** `done`: the words of the confirmation, null while it is not so. `now`: how it stands instead. */
export interface Standing {
  done: string | null;
  now: string;
}

const LIVE = ["scheduled", "running", "stopping"];
const INTENTS: Record<string, string> = { cordon: "cordoned", drain: "draining", uncordon: "open", release: "open" };

/** `action`: the address that the form is sent to; `before`: the rows when it was pressed; `minutes`: the limit asked for. */
export function standing(action: string, before: Rows, now: Rows, minutes: number | null = null): Standing {
  const path = new URL(action, location.origin).pathname.split("/").filter(Boolean);
  const verb = path.at(-1) ?? "";
  if (path[0] === "jobs") return ofJob(verb, before.get("job") as JobDetail | undefined, now.get("job") as JobDetail | undefined, minutes);
  if (path[2] === "gpus") return ofDevice(verb, now.get(`device:${path[3]}`) as DeviceRow | undefined);
  const node = now.get("node") as NodeRow | undefined;
  return { done: node !== undefined && node.intent === INTENTS[verb] ? "confirmed" : null, now: node === undefined ? "" : `the node is ${node.intent}` };
}

function ofJob(verb: string, before: JobDetail | undefined, job: JobDetail | undefined, minutes: number | null): Standing {
  if (job === undefined) return { done: null, now: "" };
  const ran = before !== undefined && LIVE.includes(before.state) ? (before.nodes ?? []) : [];
  const ended = ran.length > 0 ? `confirmed by ${ran.slice(0, 3).join(", ")}${ran.length > 3 ? ` and ${ran.length - 3} more` : ""}` : "confirmed";
  const isSo: Record<string, boolean> = {
    hold: job.state === "held",
    release: job.state !== "held",
    cancel: !LIVE.includes(job.state) && job.state !== "pending" && job.state !== "held",
    requeue: job.state === "pending" || (before !== undefined && job.attempt > before.attempt),
    retry: before !== undefined && (job.state !== before.state || job.attempt > before.attempt),
    extend: minutes === null ? before !== undefined && job.max_runtime_minutes !== before.max_runtime_minutes : job.max_runtime_minutes === minutes,
  };
  const isStopping = job.state === "stopping" && (verb === "cancel" || verb === "requeue");
  const at = verb === "extend" ? `its limit is ${job.max_runtime_minutes === null ? "none" : `${job.max_runtime_minutes} min`}` : `the job is ${job.state}`;
  return { done: isSo[verb] ? (verb === "cancel" || verb === "requeue" ? ended : "confirmed") : null, now: isStopping ? "its processes are being stopped" : at };
}

function ofDevice(verb: string, device: DeviceRow | undefined): Standing {
  if (verb === "retire") return { done: device === undefined ? "confirmed" : null, now: "the GPU is still known" };
  if (device === undefined) return { done: null, now: "" };
  const isOut = device.health === "quarantined";
  const isSo = verb === "quarantine" ? isOut : !isOut && device.health !== "degraded";
  return { done: isSo ? "confirmed" : null, now: `the GPU is ${device.health}` };
}

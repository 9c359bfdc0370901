// The head of one job's page, and its timeline: attempts on one time axis, then every event.
import { type Child, h, refill } from "../dom";
import type { MakeView } from "../regions";
import { badge } from "../states";
import { ago, duration, elapsed, serverNow } from "../time";
import type { AttemptRow, EventRow, JobDetail } from "../topics";
import { empty, mib, nodeLinks, reasonOf, request, tenantLink, under } from "./pieces";

function fact(label: string, ...value: Child[]): HTMLElement {
  return h("div", {}, h("dt", {}, label), h("dd", {}, ...value));
}

function ended(of: { exit_code: number | null; signal: number | null }): string {
  if (of.signal !== null) return `signal ${of.signal}`;
  return of.exit_code === null ? "" : `exit code ${of.exit_code}`;
}

/** The devices by node: gpu-1: 0, 1, 2 */
function placed(job: JobDetail): Child[] {
  const by = new Map<string, (number | null)[]>();
  for (const device of job.devices) by.set(device.node, [...(by.get(device.node) ?? []), device.index]);
  if (by.size === 0) return nodeLinks(job.nodes);
  const shown = [...by].slice(0, 4).flatMap(([node, list], at): Child[] => [
    at > 0 && "; ",
    ...nodeLinks([node]),
    ` GPU ${list.map((index) => index ?? "?").join(", ")}`,
  ]);
  return by.size > 4 ? [...shown, ` and ${by.size - 4} more`] : shown;
}

export const jobHead: MakeView = (region) => ({
  draw(state) {
    const job = state.rows.get("job") as JobDetail | undefined;
    if (job === undefined) return;
    const { sentence, next } = reasonOf(job);
    refill(
      region,
      h("div", { class: "headline", role: "status" }, badge(job.state), sentence !== "" && h("span", { class: "reason" }, sentence)),
      next !== "" && h("p", { class: "next-step" }, `Next: ${next}`),
      h(
        "dl",
        { class: "facts across" },
        fact("Owner", job.user),
        fact("Tenant", tenantLink(job.tenant)),
        fact("Request", request(job)),
        fact("Submitted", ago(job.submitted_at)),
        fact(job.ended_at === null ? "Running for" : "Ran", elapsed(job.started_at, job.ended_at)),
        fact("Time limit", job.max_runtime_minutes === null ? "none" : duration(job.max_runtime_minutes * 60)),
        fact("Nodes", ...placed(job)),
        job.ended_at !== null && fact("Ended", ago(job.ended_at)),
        ended(job) !== "" && fact("Exit", ended(job)),
        job.attempt > 1 && fact("Attempt", job.attempt),
      ),
    );
  },
});

interface Span {
  kind: "waiting" | "running";
  from: number;
  to: number;
}

/** The attempts' phases in milliseconds; what is not over reaches to now. */
export function spans(attempt: AttemptRow, now: number): Span[] {
  const at = (iso: string | null): number | null => (iso === null ? null : Date.parse(iso));
  const [scheduled, started, end] = [at(attempt.scheduled_at), at(attempt.started_at), at(attempt.ended_at) ?? now];
  const found: Span[] = [];
  if (scheduled !== null) found.push({ kind: "waiting", from: scheduled, to: started ?? end });
  if (started !== null) found.push({ kind: "running", from: started, to: end });
  return found;
}

function axis(attempt: AttemptRow, from: number, to: number, now: number): HTMLElement {
  const whole = Math.max(1, to - from);
  const box = h("div", { class: "axis" });
  for (const span of spans(attempt, now)) {
    const style = `left: ${((100 * (span.from - from)) / whole).toFixed(2)}%; width: ${((100 * (span.to - span.from)) / whole).toFixed(2)}%`;
    const words = span.kind === "waiting" ? "starting" : "running";
    box.append(h("span", { class: `axis-${span.kind}`, style, title: `${words} ${duration((span.to - span.from) / 1000)}` }));
  }
  return box;
}

/** An end is good, wanted by somebody, or bad: by shape and colour, not by its word alone. */
function attemptBadge({ state, reason, exit_code: code }: AttemptRow): HTMLElement {
  if (state !== "ended") return badge(state);
  const isWanted = reason === "cancelled" || reason === "requeued";
  return badge(code === 0 ? "completed" : isWanted ? "cancelled" : "failed", state);
}

/** Of the rank that had most; where the node could not count a whole rank, of its largest process. */
function peakMemory({ ranks }: AttemptRow): string {
  const [most] = ranks.filter((rank) => rank.peak_memory_mb !== null).sort((a, b) => (b.peak_memory_mb ?? 0) - (a.peak_memory_mb ?? 0));
  return most ? `${mib(most.peak_memory_mb)}${most.peak_memory_of === "process" ? " (largest process)" : ""}` : "–";
}

function attemptRow(attempt: AttemptRow, from: number, to: number, now: number): HTMLElement {
  const cell = (label: string, ...value: Child[]): HTMLElement => h("td", { "data-label": label }, ...value);
  const nodes = [...new Set(attempt.ranks.map((rank) => rank.node))];
  return h(
    "tr",
    { "data-key": `attempt:${attempt.number}` },
    cell("Attempt", attempt.number),
    cell("State", attemptBadge(attempt)),
    cell("When", axis(attempt, from, to, now)),
    cell("Ran", elapsed(attempt.started_at, attempt.ended_at)),
    cell("Nodes", ...nodeLinks(nodes)),
    cell("Peak memory", peakMemory(attempt)),
    cell("How it ended", attempt.sentence || ended(attempt) || "–"),
  );
}

export const jobTimeline: MakeView = (region) => ({
  draw(state) {
    const now = serverNow();
    const attempts = under<AttemptRow>(state, "attempt:").map(([, row]) => row).sort((a, b) => a.number - b.number);
    const events = under<EventRow>(state, "event:").map(([, row]) => row).sort((a, b) => b.id - a.id);
    const every = attempts.flatMap((attempt) => spans(attempt, now));
    const from = Math.min(...every.map((span) => span.from));
    const to = Math.max(...every.map((span) => span.to));
    const heads = ["Attempt", "State", "When", "Ran", "Nodes", "Peak memory", "How it ended"].map((label) => h("th", { scope: "col" }, label));
    refill(
      region,
      attempts.length === 0
        ? empty("Not started yet: its attempts will be here.")
        : h(
            "table",
            { class: "rows" },
            h("thead", {}, h("tr", {}, ...heads)),
            h("tbody", {}, ...attempts.map((attempt) => attemptRow(attempt, from, to, now))),
          ),
      h("ol", { class: "timeline" }, ...events.map(eventItem)),
    );
  },
});

function eventItem(event: EventRow): HTMLElement {
  const isNamed = !event.actor || (event.sentence ?? "").includes(event.actor);
  const by = isNamed ? "" : ` by ${event.actor}`;
  const more = `${event.attempt ? ` attempt ${event.attempt}` : ""}${by}`;
  const says = h("span", {}, event.sentence || event.kind.replaceAll("_", " "), h("span", { class: "muted" }, more));
  return h("li", { "data-key": `event:${event.id}` }, ago(event.at), says);
}

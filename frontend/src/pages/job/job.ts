// The head of the job page, and the job's events.
import { type Child, h, plural } from "../../ui/dom";
import { redraw } from "../../ui/morph";
import type { MakeView } from "../../live/regions";
import { badge } from "../../ui/states";
import { ago, clocked, duration, elapsed } from "../../ui/time";
import type { EventRow, JobDetail } from "../../live/topics";
import { jobLink, nodeLinks, reasonOf, request, tenantLink, under } from "../../ui/pieces";

function fact(label: string, ...value: Child[]): HTMLElement {
  return h("div", { "data-key": label }, h("dt", {}, label), h("dd", {}, ...value));
}

export function ended(of: { exit_code: number | null; signal: number | null }): string {
  if (of.signal !== null) return `signal ${of.signal}`;
  return of.exit_code === null ? "" : `exit code ${of.exit_code}`;
}

/** The devices by node: gpu-1: 0, 1, 2 */
function placed(job: JobDetail): Child[] {
  const by = new Map<string, (number | null)[]>();
  for (const device of job.devices) by.set(device.node, [...(by.get(device.node) ?? []), device.index]);
  if (by.size === 0) return nodeLinks(job.nodes);
  const parts = [...by].slice(0, 4).flatMap(([node, list], at): Child[] => [
    at > 0 && "; ",
    ...nodeLinks([node]),
    ` GPU ${list.map((index) => index ?? "?").join(", ")}`,
  ]);
  return by.size > 4 ? [...parts, ` and ${by.size - 4} more`] : parts;
}

/** Null before the start, as the submit time is shown. */
function ran(job: JobDetail): HTMLElement | null {
  if (job.started_at === null) return job.ended_at === null ? null : fact("Ran", "never");
  return fact(job.ended_at === null ? "Running for" : "Ran", elapsed(job.started_at, job.ended_at));
}

/** The elements of an array by state, as links. */
function timeLimit({ max_runtime_minutes: minutes, max_runtime_source: source }: JobDetail): string {
  if (minutes === null) return "none";
  return duration(minutes * 60) + (source === "tenant" ? ", the tenant's default" : "");
}

function elements({ id, array }: JobDetail): HTMLElement | null {
  if (!array) return null;
  const counts = Object.entries(array.by_state).flatMap(([name, count]) => [h("a", { href: `/jobs/${id}/?tab=elements&state=${name}` }, badge(name), ` ${count}`), " "]);
  const limit = array.max_parallel === null ? "" : `, at most ${array.max_parallel} at once`;
  return h("p", { class: "elements", "data-key": "elements" }, ...counts, h("span", { class: "muted" }, `of ${plural(array.count, "element")}${limit}`));
}

export const jobHead: MakeView = (region) => ({
  draw(state) {
    const job = state.rows.get("job") as JobDetail | undefined;
    if (job === undefined) return;
    const { sentence, next } = reasonOf(job);
    redraw(
      region,
      h("div", { class: "headline", "data-key": "headline", role: "status" }, badge(job.state), sentence !== "" && h("span", { class: "reason" }, ...clocked(sentence))),
      next !== "" && h("p", { class: "next-step", "data-key": "next" }, `Next: ${next}`),
      elements(job),
      h(
        "dl",
        { class: "facts across", "data-key": "facts" },
        !!job.array_id && fact("Array", jobLink(job.array_id), `, element ${job.array_index}`),
        fact("Owner", job.user),
        fact("Tenant", tenantLink(job.tenant)),
        fact("Request", request(job)),
        fact("Submitted", ago(job.submitted_at)),
        ran(job),
        fact("Time limit", timeLimit(job)),
        (job.nodes ?? []).length + job.devices.length > 0 && fact("Nodes", ...placed(job)),
        job.ended_at !== null && fact("Ended", ago(job.ended_at)),
        ended(job) !== "" && fact("Exit", ended(job)),
        job.attempt > 1 && fact("Attempt", job.attempt),
      ),
    );
  },
});

export const jobEvents: MakeView = (region) => ({
  draw(state) {
    const events = under<EventRow>(state, "event:").map(([, row]) => row).sort((a, b) => b.id - a.id);
    redraw(region, h("ol", { class: "timeline" }, ...events.map(eventItem)));
  },
});

function eventItem(event: EventRow): HTMLElement {
  const isNamed = !event.actor || (event.sentence ?? "").includes(event.actor);
  const by = isNamed ? "" : ` by ${event.actor}`;
  const more = `${event.attempt ? ` attempt ${event.attempt}` : ""}${by}`;
  const says = h("span", {}, ...clocked(event.sentence || event.kind.replaceAll("_", " ")), h("span", { class: "muted" }, more));
  return h("li", { "data-key": `event:${event.id}` }, ago(event.at), says);
}

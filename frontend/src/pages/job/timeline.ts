// The timeline of one job: waits and attempts on one time axis.
import { type Child, h } from "../../ui/dom";
import { redraw } from "../../ui/morph";
import type { MakeView } from "../../live/regions";
import { badge, waitGroup } from "../../ui/states";
import { absolute, clocked, duration, elapsed, serverNow } from "../../ui/time";
import type { AttemptRow } from "../../live/topics";
import { ended } from "./job";
import { empty, mib, nodeLinks, under } from "../../ui/pieces";

/** A period with one reason, as in GET /jobs/{id}/explain; the current one has no end. */
export interface Wait {
  code: string;
  since_at: string;
  until_at: string | null;
}

export interface Span {
  /** The class of its colour. */
  kind: string;
  words: string;
  from: number;
  to: number;
}

/** The phases of an attempt in milliseconds; an open phase ends now. */
export function spans(attempt: AttemptRow, now: number): Span[] {
  const at = (iso: string | null): number | null => (iso === null ? null : Date.parse(iso));
  const [scheduled, started, end] = [at(attempt.scheduled_at), at(attempt.started_at), at(attempt.ended_at) ?? now];
  const result: Span[] = [];
  if (scheduled !== null) result.push({ kind: "waiting", words: "starting", from: scheduled, to: started ?? end });
  if (started !== null) result.push({ kind: "running", words: "running", from: started, to: end });
  return result;
}

export function waited(waits: readonly Wait[], now: number): Span[] {
  return waits.map(({ code, since_at, until_at }) => {
    const group = code.startsWith("held_by") ? "held" : waitGroup("pending", code);
    return { kind: `wait-on-${group} for-${code}`, words: code.replaceAll("_", " "), from: Date.parse(since_at), to: until_at === null ? now : Date.parse(until_at) };
  });
}

function axis(list: readonly Span[], from: number, to: number): HTMLElement {
  const total = Math.max(1, to - from);
  const part = (length: number): string => `${((100 * length) / total).toFixed(2)}%`;
  const words = (span: Span): string => `${span.words} ${duration((span.to - span.from) / 1000)}`;
  const parts = list.map((span) =>
    h("span", {
      class: span.kind.startsWith("wait-on-") ? span.kind : `axis-${span.kind}`,
      style: `left: ${part(span.from - from)}; width: ${part(span.to - span.from)}`,
      title: words(span),
    }),
  );
  return h("div", { class: "axis", role: "img", "aria-label": list.map(words).join(", ") }, ...parts);
}

/** The badge of an attempt: successful, cancelled on request or failed. */
function attemptBadge({ state, reason, exit_code: code }: AttemptRow): HTMLElement {
  if (state !== "ended") return badge(state);
  const isWanted = reason === "cancelled" || reason === "requeued";
  return badge(code === 0 ? "completed" : isWanted ? "cancelled" : "failed", state);
}

/** Return the maximum peak memory of ranks, or of the largest process if ranks cannot be measured. */
function peakMemory({ ranks }: AttemptRow): string {
  const [largest] = ranks.filter((rank) => rank.peak_memory_mb !== null).sort((a, b) => (b.peak_memory_mb ?? 0) - (a.peak_memory_mb ?? 0));
  return largest ? `${mib(largest.peak_memory_mb)}${largest.peak_memory_of === "process" ? " (largest process)" : ""}` : "–";
}

const cell = (label: string, ...value: Child[]): HTMLElement => h("td", { "data-label": label, class: label === "When" ? "when" : null }, ...value);

function attemptRow(attempt: AttemptRow, from: number, to: number, now: number): HTMLElement {
  const nodes = [...new Set(attempt.ranks.map((rank) => rank.node))];
  return h(
    "tr",
    { "data-key": `attempt:${attempt.number}` },
    cell("Attempt", attempt.number),
    cell("State", attemptBadge(attempt)),
    cell("When", axis(spans(attempt, now), from, to)),
    cell("Ran", elapsed(attempt.started_at, attempt.ended_at)),
    cell("Nodes", ...nodeLinks(nodes)),
    cell("Peak memory", peakMemory(attempt)),
    cell("How it ended", ...clocked(attempt.sentence || ended(attempt) || "–")),
  );
}

function waitRow(waits: readonly Span[], from: number, to: number): HTMLElement {
  const seconds = waits.reduce((sum, span) => sum + (span.to - span.from) / 1000, 0);
  const longest = [...waits].sort((a, b) => b.to - b.from - (a.to - a.from))[0];
  return h(
    "tr",
    { "data-key": "waits" },
    cell("Attempt", "–"),
    cell("State", badge("pending", "waited")),
    cell("When", axis(waits, from, to)),
    cell("Ran", duration(seconds)),
    cell("Nodes", "–"),
    cell("Peak memory", "–"),
    cell("How it ended", longest === undefined ? "–" : `mostly: ${longest.words}`),
  );
}

/** Total time by reason, longest first. `present`: the current reason. */
function legend(blocked: readonly Span[], present: string | undefined): HTMLElement {
  const sums = new Map<string, { span: Span; ms: number; times: number }>();
  for (const span of blocked) {
    const total = sums.get(span.words) ?? { span, ms: 0, times: 0 };
    sums.set(span.words, { span, ms: total.ms + span.to - span.from, times: total.times + 1 });
  }
  const items = [...sums.values()].sort((a, b) => b.ms - a.ms).map(({ span, ms, times }) =>
    h("li", {}, h("i", { class: span.kind, "aria-hidden": "true" }), `${span.words} `, h("span", { class: "muted" }, `${duration(ms / 1000)}${times > 1 ? `, ${times} times` : ""}${present?.replaceAll("_", " ") === span.words ? " so far" : ""}`)),
  );
  return h("ul", { class: "wait-legend" }, ...items);
}

export const jobTimeline: MakeView = (region) => {
  return {
    draw(state) {
      const now = serverNow();
      const waits = (state.rows.get("waits") as { periods: Wait[] } | undefined)?.periods ?? [];
      const attempts = under<AttemptRow>(state, "attempt:").map(([, row]) => row).sort((a, b) => a.number - b.number);
      const blocked = waited(waits, now);
      const every = [...attempts.flatMap((attempt) => spans(attempt, now)), ...blocked];
      const from = Math.min(...every.map((span) => span.from));
      const to = Math.max(...every.map((span) => span.to));
      const scale = h("span", { class: "axis-ends" }, h("span", {}, "When"), every.length > 0 && h("small", { class: "muted" }, `${absolute(from)} to ${to >= now ? "now" : absolute(to)}`));
      const heads = ["Attempt", "State", scale, "Ran", "Nodes", "Peak memory", "How it ended"].map((label) => h("th", { scope: "col" }, label));
      redraw(
        region,
        every.length > 0 &&
          h(
            "table",
            { class: "rows" },
            h("thead", {}, h("tr", {}, ...heads)),
            h("tbody", {}, blocked.length > 0 && waitRow(blocked, from, to), ...attempts.map((attempt) => attemptRow(attempt, from, to, now))),
          ),
        attempts.length === 0 && empty("Not started yet. Its attempts appear here."),
        blocked.length > 0 && legend(blocked, waits.at(-1)?.until_at === null ? waits.at(-1)?.code : undefined),
      );
    },
  };
};

// A server-rendered region: when its topic changes, reload the page and apply the differences.
import htmx from "htmx.org";
import type { MakeView } from "./regions";
import { request } from "../ui/fetch_errors";
import { morphChildren } from "../ui/morph";
import { whenVisible } from "./visibility";

/** The pause between reloads, with jitter so that pages do not reload together. */
const PAUSE_MS = 2000 + Math.random() * 1000;
const MAX_PAUSE_MS = 60_000;
/** Reload after this time without a change of the topic, for what the topic does not have: limits, names, times. */
const MAX_AGE_MS = 10_000;

const regions = new Set<HTMLElement>();
let isStale = false;
let isBusy = false;
let failures = 0;

async function reloadUntilCurrent(): Promise<void> {
  isStale = false;
  isBusy = true;
  const isFine = await reload();
  // Retry after a failure: the topic may not change again for long.
  if (!isFine) isStale = true;
  // Reload until the request is confirmed.
  isStale ||= [...regions].some((region) => region.querySelector("[data-awaited]") !== null);
  failures = isFine ? 0 : failures + 1;
  whenVisible(continueReloading, Math.min(MAX_PAUSE_MS, PAUSE_MS * 2 ** Math.min(failures, 10)));
}

function continueReloading(): void {
  isBusy = false;
  if (isStale && regions.size > 0) void reloadUntilCurrent();
}

/** Reload the page. Return false if it must be retried. */
async function reload(): Promise<boolean> {
  const address = location.href;
  try {
    const answer = await request(address, { headers: { "X-Again": "1" } });
    const text = answer.ok ? await answer.text() : "";
    // The user has chosen another filter meanwhile: this answer would undo it.
    if (address !== location.href) isStale = true;
    else if (answer.ok) update(new DOMParser().parseFromString(text, "text/html"));
    // A retry does not help if the page is gone or forbidden, or if the session has ended.
    return answer.ok || answer.type === "opaqueredirect" || [403, 404, 410].includes(answer.status);
  } catch {
    return false;
  }
}

function update(fresh: Document): void {
  for (const region of regions) {
    const counterpart = fresh.getElementById(region.id);
    if (!region.isConnected || counterpart === null) continue;
    morphChildren(region, counterpart);
    // New elements can have HTMX attributes.
    htmx.process(region);
  }
  document.dispatchEvent(new CustomEvent("htmx:afterSettle"));
}

document.addEventListener("asked", () => regions.size > 0 && markStale());

setInterval(() => regions.size > 0 && !document.hidden && markStale(), MAX_AGE_MS);

function markStale(): void {
  isStale = true;
  if (!isBusy) void reloadUntilCurrent();
}

/** The region must have an id. The first snapshot reloads too, as the page can be older. */
export const serverRegion: MakeView = (region) => {
  regions.add(region);
  return { draw: markStale, close: () => void regions.delete(region) };
};

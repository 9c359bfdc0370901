// A part of the page that the server draws: when its topic changes the page is asked for again, and what differs is taken.
import htmx from "htmx.org";
import type { MakeView } from "./regions";
import { morphChildren } from "../ui/morph";
import { whenVisible } from "./visibility";

/** From the end of one fetch to the next; a little different for each page, lest all ask at once. */
const PAUSE_MS = 2000 + Math.random() * 1000;
const MAX_PAUSE_MS = 60_000;

const regions = new Set<HTMLElement>();
let isStale = false;
let isBusy = false;
let failures = 0;

async function reloadUntilCurrent(): Promise<void> {
  isStale = false;
  isBusy = true;
  const isFine = await reload();
  // A page that was not had is owed still: what has changed may not change again for long.
  if (!isFine) isStale = true;
  // What was asked for is looked at until it is so.
  isStale ||= [...regions].some((region) => region.querySelector("[data-awaited]") !== null);
  failures = isFine ? 0 : failures + 1;
  whenVisible(continueReloading, Math.min(MAX_PAUSE_MS, PAUSE_MS * 2 ** Math.min(failures, 10)));
}

function continueReloading(): void {
  isBusy = false;
  if (isStale && regions.size > 0) void reloadUntilCurrent();
}

/** Whether the page needs not be asked for again. */
async function reload(): Promise<boolean> {
  try {
    const answer = await fetch(location.href, { headers: { "X-Again": "1" }, redirect: "error" });
    if (answer.ok) update(new DOMParser().parseFromString(await answer.text(), "text/html"));
    // What is not there any more, or not for this person, does not come by asking.
    return answer.ok || [403, 404, 410].includes(answer.status);
  } catch {
    return false;
  }
}

function update(fresh: Document): void {
  for (const region of regions) {
    const counterpart = fresh.getElementById(region.id);
    if (!region.isConnected || counterpart === null) continue;
    morphChildren(region, counterpart);
    // What has come new may be more than a link.
    htmx.process(region);
  }
  document.dispatchEvent(new CustomEvent("htmx:afterSettle"));
}

document.addEventListener("asked", () => regions.size > 0 && markStale());

function markStale(): void {
  isStale = true;
  if (!isBusy) void reloadUntilCurrent();
}

/** The region must have an id. The first snapshot counts, too: something may have changed since the page was made. */
export const serverRegion: MakeView = (region) => {
  regions.add(region);
  return { draw: markStale, close: () => void regions.delete(region) };
};

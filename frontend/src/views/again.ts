// A part of the page that the server draws: when its topic changes the page is asked for again, and what differs is taken.
import htmx from "htmx.org";
import type { MakeView } from "../regions";
import { morphChildren } from "../morph";

/** From the end of one fetch to the next; a little different for each page, lest all ask at once. */
const PAUSE_MS = 2000 + Math.random() * 1000;

const regions = new Set<HTMLElement>();
let timer: ReturnType<typeof setTimeout> | undefined;
let isOwed = false;
let isBusy = false;

async function fetchAgain(): Promise<void> {
  isOwed = false;
  isBusy = true;
  try {
    const answer = await fetch(location.href, { headers: { "X-Again": "1" }, redirect: "error" });
    if (answer.ok) take(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch {
    // The socket says whether the server is there; the next change asks again.
  }
  isBusy = false;
  // What was asked for is looked at until it is so.
  isOwed ||= [...regions].some((region) => region.querySelector("[data-awaited]") !== null);
  timer = setTimeout(() => {
    timer = undefined;
    if (isOwed) void fetchAgain();
  }, PAUSE_MS);
}

function take(fresh: Document): void {
  for (const region of regions) {
    const counterpart = fresh.getElementById(region.id);
    if (!region.isConnected || counterpart === null) continue;
    morphChildren(region, counterpart);
    // What has come new may be more than a link.
    htmx.process(region);
  }
  document.dispatchEvent(new CustomEvent("htmx:afterSettle"));
}

document.addEventListener("asked", () => regions.size > 0 && owe());

function owe(): void {
  isOwed = true;
  if (!isBusy && timer === undefined) void fetchAgain();
}

/** The region must have an id. The first snapshot counts, too: something may have changed since the page was made. */
export const again: MakeView = (region) => {
  regions.add(region);
  return { draw: owe, close: () => void regions.delete(region) };
};

// Previews beside forms: say that one is out of date when it could not be loaded, and load it again.
import { whenVisible } from "../live/visibility";
import { h } from "./dom";

const AGAIN_MS = 3000;
/** Elements whose `hx-post` shows the effect of what is being typed. */
const PREVIEW = '[hx-post][hx-trigger*="input"]';

interface Failure {
  elt: HTMLElement;
  target: HTMLElement;
  xhr: { status: number };
}

export function startPreviews(): void {
  for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
    document.addEventListener(name, (event) => onFailure((event as CustomEvent<Failure>).detail));
  }
  document.addEventListener("htmx:afterSwap", (event) => (event as CustomEvent<Failure>).detail.target.classList.remove("is-past"));
}

function onFailure({ elt, target, xhr }: Failure): void {
  if (!elt.matches(PREVIEW)) return;
  target.classList.add("is-past");
  const isAway = xhr.status === 0 || xhr.status >= 500;
  const why = xhr.status === 0 ? "the server gave no answer" : `the server answered ${xhr.status}`;
  const next = isAway ? "It is loaded again until it succeeds." : "Reload the page.";
  if (target.querySelector(":scope > .live-error") === null) {
    target.prepend(h("p", { class: "note bad live-error", role: "alert" }, `This is not what you have typed: ${why}. ${next}`));
  }
  if (isAway) whenVisible(() => again(elt, target), AGAIN_MS);
}

function again(elt: HTMLElement, target: HTMLElement): void {
  if (elt.isConnected && target.classList.contains("is-past")) elt.dispatchEvent(new Event("input", { bubbles: true }));
}

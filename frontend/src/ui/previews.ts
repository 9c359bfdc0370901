// Previews beside forms: say that one is out of date when it could not be loaded, and load it again.
import { whenVisible } from "../live/visibility";
import { h } from "./dom";

const AGAIN_MS = 3000;

interface Failure {
  elt: HTMLElement;
  target: HTMLElement;
  xhr: { status: number };
}

/** A preview is what an `hx-post` shows while a user types into a form. */
export function startPreviews(): void {
  for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
    document.addEventListener(name, (event) => onFailure((event as CustomEvent<Failure>).detail));
  }
}

function onFailure({ elt, target, xhr: { status } }: Failure): void {
  if (!elt.matches("[hx-post]")) return;
  const why = status ? `the server answered ${status}` : "the server gave no answer";
  const note = target.querySelector(".live-error") ?? h("p", { class: "note bad live-error", role: "alert" }, `Out of date: ${why}.`);
  // One alert is enough, and an answer replaces it.
  if (!note.isConnected) target.prepend(note);
  if (!status || status >= 500) whenVisible(() => note.isConnected && elt.dispatchEvent(new Event("input", { bubbles: true })), AGAIN_MS);
}

// Forms that can be taken back: what is asked for is sent some seconds later, unless Undo is pressed; a page that is left
// sends it at once. <form data-undo="Job 7 will be cancelled">.
import { h } from "../ui/dom";
import { clocked } from "../ui/time";

export const UNDO_MS = 5000;

interface Waiting {
  about: ReadonlySet<string>;
  send(isLeaving: boolean): void;
}

const waiting = new Set<Waiting>();

export function startUndo(): void {
  document.addEventListener(
    "submit",
    (event) => {
      const form = event.target;
      if (!(form instanceof HTMLFormElement) || form.dataset.undo === undefined || form.dataset.sent === "yes") return;
      // Before anybody else acts on it: nothing is requested yet.
      event.preventDefault();
      event.stopImmediatePropagation();
      // Who presses it twice has asked once, and takes it back by one Undo.
      if (!awaits(form.action)) later(form.dataset.undo, [form.action], (isLeaving) => (isLeaving ? leave(form) : submit(form)));
    },
    { capture: true },
  );
  addEventListener("pagehide", () => waiting.forEach((each) => each.send(true)));
}

/** Whether something of that name will be sent yet. */
export function awaits(name: string): boolean {
  return [...waiting].some((one) => one.about.has(name));
}

/** Shows what will be (`words`: "Job 7 will be cancelled"), and calls `send` after some seconds unless it is undone.
 *  `about`: the names of what `awaits` meanwhile. */
export function later(words: string, about: readonly string[], send: (isLeaving: boolean) => void, ms = UNDO_MS): void {
  const left = h("span", { class: "muted", "aria-hidden": "true" });
  const undo = h("button", { type: "button", class: "small" }, "Undo");
  const now = h("button", { type: "button", class: "small" }, "Do it now");
  const shown = h("div", { class: "toast", role: "status" }, h("span", {}, `${words} in ${Math.round(ms / 1000)} s.`), left, undo, now);
  const until = performance.now() + ms;
  const from = document.activeElement;
  const end = (): void => {
    clearTimeout(timer);
    clearInterval(ticking);
    waiting.delete(one);
    remove(shown, from);
  };
  const one: Waiting = {
    about: new Set(about),
    send(isLeaving) {
      end();
      send(isLeaving);
    },
  };
  const say = (): void => void (left.textContent = `${Math.max(1, Math.ceil((until - performance.now()) / 1000))} s`);
  const ticking = setInterval(say, 250);
  const timer = setTimeout(() => one.send(false), ms);
  waiting.add(one);
  undo.addEventListener("click", end);
  now.addEventListener("click", () => one.send(false));
  say();
  place().append(shown);
  undo.focus({ preventScroll: true });
}

/** Says something for a while, with a button that takes it back where that can be; gives what ends it before. */
export function toast(words: string, action?: { word: string; run: () => void }, ms = 2 * UNDO_MS): () => void {
  const shown = h("div", { class: "toast", role: "status" }, h("span", {}, ...clocked(words)));
  const from = document.activeElement;
  const end = (): void => remove(shown, from);
  if (action !== undefined) {
    const button = h("button", { type: "button", class: "small" }, action.word);
    button.addEventListener("click", () => {
      end();
      action.run();
    });
    shown.append(button);
  }
  const close = h("button", { type: "button", class: "small", "aria-label": "Close" }, "✕");
  close.addEventListener("click", end);
  shown.append(close);
  place().append(shown);
  setTimeout(end, ms);
  return end;
}

/** The focus, if it is there, goes back to where it came from; where that is gone, to the page. */
function remove(shown: HTMLElement, from: Element | null): void {
  const hadFocus = shown.contains(document.activeElement);
  shown.remove();
  if (!hadFocus) return;
  if (from instanceof HTMLElement) from.focus({ preventScroll: true });
  if (document.activeElement !== from || from === document.body) document.querySelector<HTMLElement>("main")?.focus({ preventScroll: true });
}

function submit(form: HTMLFormElement): void {
  form.dataset.sent = "yes";
  // Drawn anew meanwhile, the form is not in the page any more; what it asks for is the same.
  if (!form.isConnected) {
    form.hidden = true;
    document.body.append(form);
  }
  form.requestSubmit();
  // It may be refused, and asked for once more.
  delete form.dataset.sent;
  if (form.hidden) form.remove();
}

function leave(form: HTMLFormElement): void {
  void fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form) as unknown as Record<string, string>), keepalive: true, credentials: "same-origin" });
}

function place(): HTMLElement {
  const known = document.querySelector<HTMLElement>(".toasts");
  if (known !== null) return known;
  const made = h("div", { class: "toasts" });
  document.body.append(made);
  return made;
}

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
      if (!isPending(form.action)) schedule(form.dataset.undo, [form.action], (isLeaving) => (isLeaving ? leave(form) : submit(form)));
    },
    { capture: true },
  );
  addEventListener("pagehide", () => waiting.forEach((each) => each.send(true)));
}

/** Whether something of that name will be sent yet. */
export function isPending(name: string): boolean {
  return [...waiting].some((entry) => entry.about.has(name));
}

/** Shows what will be (`words`: "Job 7 will be cancelled"), and calls `send` after some seconds unless it is undone.
 *  `about`: the names of what `awaits` meanwhile. */
export function schedule(sentence: string, about: readonly string[], send: (isLeaving: boolean) => void, ms = UNDO_MS): void {
  const remaining = h("span", { class: "muted", "aria-hidden": "true" });
  const undo = h("button", { type: "button", class: "small" }, "Undo");
  const now = h("button", { type: "button", class: "small" }, "Do it now");
  const message = h("div", { class: "toast", role: "status" }, h("span", {}, `${sentence} in ${Math.round(ms / 1000)} s.`), remaining, undo, now);
  const until = performance.now() + ms;
  const from = document.activeElement;
  const end = (): void => {
    clearTimeout(timer);
    clearInterval(ticking);
    waiting.delete(entry);
    remove(message, from);
  };
  const entry: Waiting = {
    about: new Set(about),
    send(isLeaving) {
      end();
      send(isLeaving);
    },
  };
  const showRemaining = (): void => void (remaining.textContent = `${Math.max(1, Math.ceil((until - performance.now()) / 1000))} s`);
  const ticking = setInterval(showRemaining, 250);
  const timer = setTimeout(() => entry.send(false), ms);
  waiting.add(entry);
  undo.addEventListener("click", end);
  now.addEventListener("click", () => entry.send(false));
  showRemaining();
  place().append(message);
  undo.focus({ preventScroll: true });
}

/** Says something for a while, with a button that takes it back where that can be; gives what ends it before. */
export function toast(sentence: string, action?: { word: string; run: () => void }, ms = 2 * UNDO_MS): () => void {
  const message = h("div", { class: "toast", role: "status" }, h("span", {}, ...clocked(sentence)));
  const from = document.activeElement;
  const end = (): void => remove(message, from);
  if (action !== undefined) {
    const button = h("button", { type: "button", class: "small" }, action.word);
    button.addEventListener("click", () => {
      end();
      action.run();
    });
    message.append(button);
  }
  const close = h("button", { type: "button", class: "small", "aria-label": "Close" }, "✕");
  close.addEventListener("click", end);
  message.append(close);
  place().append(message);
  setTimeout(end, ms);
  return end;
}

/** The focus, if it is there, goes back to where it came from; where that is gone, to the page. */
function remove(message: HTMLElement, from: Element | null): void {
  const hadFocus = message.contains(document.activeElement);
  message.remove();
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
  const existing = document.querySelector<HTMLElement>(".toasts");
  if (existing !== null) return existing;
  const created = h("div", { class: "toasts" });
  document.body.append(created);
  return created;
}

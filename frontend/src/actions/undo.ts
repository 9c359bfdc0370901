// Forms with undo: the request is sent after some seconds unless the user presses Undo; leaving the page
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
      // Before other listeners: nothing is requested yet.
      event.preventDefault();
      event.stopImmediatePropagation();
      // A second press is the same request, undone once.
      if (!isPending(form.action)) schedule(form.dataset.undo, [form.action], (isLeaving) => (isLeaving ? leave(form) : submit(form)));
    },
    { capture: true },
  );
  addEventListener("pagehide", () => waiting.forEach((each) => each.send(true)));
}

/** Return whether a request of this name is pending. */
export function isPending(name: string): boolean {
  return [...waiting].some((entry) => entry.about.has(name));
}

/** Show `sentence` ("Job 7 will be cancelled") and call `send` after some seconds unless undone.
 *  `about`: names for `isPending`. */
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

/** Show a message for a while, optionally with an action; returns a function that closes it. */
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

/** Remove the message; a focus in it returns to its origin, or to the page. */
function remove(message: HTMLElement, from: Element | null): void {
  const hadFocus = message.contains(document.activeElement);
  message.remove();
  if (!hadFocus) return;
  if (from instanceof HTMLElement) from.focus({ preventScroll: true });
  if (document.activeElement !== from || from === document.body) document.querySelector<HTMLElement>("main")?.focus({ preventScroll: true });
}

function submit(form: HTMLFormElement): void {
  form.dataset.sent = "yes";
  // A redraw can have removed the form from the page; submit it anyway.
  if (!form.isConnected) {
    form.hidden = true;
    document.body.append(form);
  }
  form.requestSubmit();
  // A refused request can be sent again.
  delete form.dataset.sent;
  if (form.hidden) form.remove();
}

function leave(form: HTMLFormElement): void {
  void fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form) as unknown as Record<string, string>), keepalive: true });
}

function place(): HTMLElement {
  const existing = document.querySelector<HTMLElement>(".toasts");
  if (existing !== null) return existing;
  const created = h("div", { class: "toasts" });
  document.body.append(created);
  return created;
}

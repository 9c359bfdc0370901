// Buttons that ask for something say "requested…" until the rows show it, then "confirmed"; a question stays open until it is answered;
// tells the page when a job's state changed.
import { standing } from "./asked";
import type { Hub } from "./hub";
import type { JobDetail } from "./topics";

/** If it is not so by then, the button says why; it is not pressed twice. */
const PATIENCE_MS = 30_000;

export function startConfirm(hub: Hub): void {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement)) return;
    const pressed = (event as SubmitEvent).submitter ?? form.querySelector("button");
    const button = pressed instanceof HTMLButtonElement ? pressed : null;
    const topic = button?.dataset.confirmedBy ?? form.dataset.confirmedBy;
    // After the browser has read the form: a disabled button would be missing from what is sent.
    if (button !== null && topic !== undefined) setTimeout(() => wait(hub, button, form, topic));
  });
}

function wait(hub: Hub, button: HTMLButtonElement, form: HTMLFormElement, topic: string): void {
  const before = hub.state(topic).rows;
  const words = button.textContent;
  const action = button.getAttribute("formaction") ?? form.getAttribute("action") ?? "";
  const minutes = Number(new FormData(form).get("max_runtime_minutes") ?? "") || null;
  let [now, isLate] = [hub.state(topic), false];
  let stop = (): void => undefined;
  const end = (): void => {
    clearTimeout(timer);
    removeEventListener("pageshow", restore);
    document.removeEventListener("htmx:responseError", restore);
    stop();
  };
  const restore = (): void => {
    end();
    button.disabled = false;
    button.textContent = words;
  };
  const show = (): void => {
    // What the connection knew before it was lost says nothing of what was asked since.
    const at = now.status === "ready" ? standing(action, before, now.rows, minutes) : { done: null, now: "" };
    button.textContent = at.done ?? (isLate ? `not confirmed yet: ${at.now || "the page hears nothing of it"}` : "requested…");
    if (at.done !== null) end();
  };
  const timer = setTimeout(() => {
    isLate = true;
    show();
  }, PATIENCE_MS);
  button.disabled = true;
  button.textContent = "requested…";
  addEventListener("pageshow", restore);
  document.addEventListener("htmx:responseError", restore);
  stop = hub.listen(topic, (state) => {
    now = state;
    show();
  });
}

/** A question that somebody is about to answer stays open when the buttons around it are drawn anew. */
export function keepQuestionOpen(): void {
  let isOpen = false;
  document.body.addEventListener("htmx:beforeSwap", () => {
    isOpen = document.querySelector("details.confirm[open]") !== null;
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    const question = document.querySelector<HTMLDetailsElement>("details.confirm");
    if (isOpen && question !== null) question.open = true;
  });
}

/** Dispatches `job-changed` on the body when the state of the page's job changes: what fits it then is another thing. */
export function startJobChanges(hub: Hub): void {
  const region = document.querySelector<HTMLElement>('[data-live^="job:"]');
  const topic = region?.dataset.live;
  if (topic === undefined) return;
  // It may have changed between the server's look and the first message.
  let known = region?.dataset.state;
  hub.listen(topic, (state) => {
    const job = state.rows.get("job") as JobDetail | undefined;
    const before = known;
    known = job?.state ?? known;
    if (before !== undefined && before !== known) document.body.dispatchEvent(new CustomEvent("job-changed"));
  });
}

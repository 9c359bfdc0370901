// Buttons that ask for something say "requested…" until the job shows it; a question stays open until it is answered;
// tells the page when a job's state changed.
import type { Hub } from "./hub";
import type { JobDetail } from "./topics";

/** If nothing changed by then, the button may be pressed again. */
const PATIENCE_MS = 30_000;

export function startConfirm(hub: Hub): void {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement)) return;
    const pressed = (event as SubmitEvent).submitter ?? form.querySelector("button");
    const button = pressed instanceof HTMLButtonElement ? pressed : null;
    const topic = button?.dataset.confirmedBy ?? form.dataset.confirmedBy;
    // After the browser has read the form: a disabled button would be missing from what is sent.
    if (button !== null && topic !== undefined) setTimeout(() => wait(hub, button, topic));
  });
}

function wait(hub: Hub, button: HTMLButtonElement, topic: string): void {
  const before = hub.state(topic).rows.get("job");
  const words = button.textContent;
  let end = (): void => undefined;
  const restore = (): void => {
    clearTimeout(timer);
    removeEventListener("pageshow", restore);
    document.removeEventListener("htmx:responseError", restore);
    button.disabled = false;
    button.textContent = words;
    end();
  };
  const timer = setTimeout(restore, PATIENCE_MS);
  button.disabled = true;
  button.textContent = "requested…";
  addEventListener("pageshow", restore);
  document.addEventListener("htmx:responseError", restore);
  end = hub.listen(topic, (state) => {
    const now = state.rows.get("job");
    if (before !== undefined && now !== undefined && now !== before) restore();
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

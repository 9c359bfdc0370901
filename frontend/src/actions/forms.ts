// Submit forms in place: show "requested…" at once, then the server's answer. Listeners of `asked`
// draw the status. Without this script the forms load a page with the answer.
import { ask, showFailure } from "../ui/fetch_errors";
import { toast } from "./undo";

const asking = new WeakSet<HTMLFormElement>();
/** Closes the last message, which a later request can contradict. */
let closeLast = (): void => undefined;

/** `<form data-asks>`: dispatches `asked` on the document after any answer. */
export function startAsking(): void {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || form.dataset.asks === undefined || event.defaultPrevented) return;
    event.preventDefault();
    // Ignore a second submit until the first is answered.
    if (!asking.has(form)) void sendForm(form, event.submitter);
  });
}

async function sendForm(form: HTMLFormElement, submitter: HTMLElement | null): Promise<void> {
  const button = submitter instanceof HTMLButtonElement ? submitter : form.querySelector("button");
  const words = button?.textContent ?? "";
  const address = button?.getAttribute("formaction") ?? form.getAttribute("action") ?? "";
  const body = new URLSearchParams([...new FormData(form)].map(([name, value]) => [name, String(value)]));
  asking.add(form);
  // Not `disabled`, which would drop the keyboard focus.
  button?.setAttribute("aria-disabled", "true");
  if (button !== null) button.textContent = "requested…";
  const isDone = await send(address, body);
  asking.delete(form);
  button?.removeAttribute("aria-disabled");
  if (button?.textContent === "requested…") button.textContent = words;
  if (isDone) close(form);
  document.dispatchEvent(new CustomEvent("asked"));
}

/** Send the form, show the answer and return whether it was done. */
async function send(address: string, body: URLSearchParams): Promise<boolean> {
  try {
    const { is_done, sentence } = await ask<{ is_done: boolean; sentence: string }>(address, body);
    closeLast();
    closeLast = toast(sentence);
    return is_done;
  } catch (error) {
    showFailure(error);
    return false;
  }
}

/** Reset the form and close its dialog; the focus returns to its summary. */
function close(form: HTMLFormElement): void {
  form.reset();
  const question = form.querySelector<HTMLDetailsElement>("details.confirm[open]") ?? form.closest<HTMLDetailsElement>("details.confirm");
  if (question === null) return;
  const hadFocus = question.contains(document.activeElement);
  question.removeAttribute("open");
  if (hadFocus) question.querySelector("summary")?.focus();
}

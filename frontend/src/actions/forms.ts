// Submit forms in place: show "requested…" at once, then the server's answer. Listeners of `asked`
// draw the status. Without this script the forms load a page with the answer.
import { ask, showFailure } from "../ui/fetch_errors";
import { toast } from "./undo";

/** A page that does not answer can be stopped, and its form sent again. */
const STOPPED_MS = 10_000;
const asking = new WeakSet<HTMLFormElement>();
/** Closes the last message, which a later request can contradict. */
let closeLast = (): void => undefined;

/** `<form data-asks>`: dispatches `asked` on the document after any answer. Of all forms, ignore a second submit until
 *  the first is answered: it would do the same twice, such as replace a secret. */
export function startAsking(): void {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || form.method !== "post" || event.defaultPrevented) return;
    const isInPlace = form.dataset.asks !== undefined;
    if (isInPlace || asking.has(form)) event.preventDefault();
    if (asking.has(form)) return;
    asking.add(form);
    if (isInPlace) void sendForm(form, event.submitter);
    else setTimeout(() => asking.delete(form), STOPPED_MS);
  });
}

async function sendForm(form: HTMLFormElement, submitter: HTMLElement | null): Promise<void> {
  const button = submitter ?? (form.querySelector("button") as HTMLElement);
  const words = button.textContent;
  const address = button.getAttribute("formaction") ?? form.getAttribute("action") ?? "";
  const body = new URLSearchParams(new FormData(form) as unknown as Record<string, string>);
  // Not `disabled`, which would drop the keyboard focus.
  button.setAttribute("aria-disabled", "true");
  button.textContent = "requested…";
  const isDone = await send(address, body);
  asking.delete(form);
  button.removeAttribute("aria-disabled");
  if (button.textContent === "requested…") button.textContent = words;
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

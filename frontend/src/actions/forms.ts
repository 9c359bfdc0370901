// Forms that ask for something are sent in place: "requested…" at once, then what the server answers; how it stands is
// then drawn by those who hear `asked`. Without this script the same forms lead to the page that says it.
import { ask, showFailure } from "../ui/fetch_errors";
import { toast } from "./undo";

const asking = new WeakSet<HTMLFormElement>();
/** What was said last may not be so any more once something else was asked: "takes no new jobs", "takes jobs again". */
let closeLast = (): void => undefined;

/** `<form data-asks>`: dispatches `asked` on the document when the server has answered, whatever it said. */
export function startAsking(): void {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || form.dataset.asks === undefined || event.defaultPrevented) return;
    event.preventDefault();
    // It is not asked twice while nobody knows of the first time.
    if (!asking.has(form)) void sendForm(form, event.submitter);
  });
}

async function sendForm(form: HTMLFormElement, submitter: HTMLElement | null): Promise<void> {
  const button = submitter instanceof HTMLButtonElement ? submitter : form.querySelector("button");
  const words = button?.textContent ?? "";
  const address = button?.getAttribute("formaction") ?? form.getAttribute("action") ?? "";
  const body = new URLSearchParams([...new FormData(form)].map(([name, value]) => [name, String(value)]));
  asking.add(form);
  // Not `disabled`: who pressed it by a key would be thrown out of the form.
  button?.setAttribute("aria-disabled", "true");
  if (button !== null) button.textContent = "requested…";
  const isDone = await send(address, body);
  asking.delete(form);
  button?.removeAttribute("aria-disabled");
  if (button?.textContent === "requested…") button.textContent = words;
  if (isDone) close(form);
  document.dispatchEvent(new CustomEvent("asked"));
}

/** Whether it was done; what was said of it is shown. */
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

/** What was typed has been said, and the question is answered: the focus goes to where it was opened. */
function close(form: HTMLFormElement): void {
  form.reset();
  const question = form.querySelector<HTMLDetailsElement>("details.confirm[open]") ?? form.closest<HTMLDetailsElement>("details.confirm");
  if (question === null) return;
  const hadFocus = question.contains(document.activeElement);
  question.removeAttribute("open");
  if (hadFocus) question.querySelector("summary")?.focus();
}

// Buttons that copy the text of another element: <button data-copy="#id">.

/** How long a button shows its result. */
const SAID_MS = 1500;

export function startCopy(): void {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest<HTMLButtonElement>("button[data-copy]") : null;
    const source = button === null ? null : document.querySelector(button.dataset.copy ?? "");
    if (button !== null && source !== null) void copy(source).then((isDone) => flash(button, isDone ? "Copied" : "Press Ctrl-C"));
  });
}

/** Return false if the browser forbids it; the text is then selected for a manual copy. */
async function copy(source: Element): Promise<boolean> {
  try {
    // The clipboard needs TLS or localhost.
    await navigator.clipboard.writeText(source.textContent ?? "");
    return true;
  } catch {
    const range = document.createRange();
    range.selectNodeContents(source);
    getSelection()?.removeAllRanges();
    getSelection()?.addRange(range);
    return document.execCommand("copy");
  }
}

function flash(button: HTMLButtonElement, text: string): void {
  const original = button.dataset.words ?? button.textContent ?? "";
  button.dataset.words = original;
  button.textContent = text;
  setTimeout(() => (button.textContent = original), SAID_MS);
}

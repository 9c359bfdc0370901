// Buttons that copy what another element says: <button data-copy="#id">.

/** How long a button says that it has copied. */
const SAID_MS = 1500;

export function startCopy(): void {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest<HTMLButtonElement>("button[data-copy]") : null;
    const source = button === null ? null : document.querySelector(button.dataset.copy ?? "");
    if (button !== null && source !== null) void copy(source).then((isDone) => flash(button, isDone ? "Copied" : "Press Ctrl-C"));
  });
}

/** False where the browser does not let the page: then the text is selected, for the person to copy. */
async function copy(source: Element): Promise<boolean> {
  try {
    // Only pages over TLS, or on this machine, have a clipboard.
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

// Copy buttons report success only if copied.
import { beforeEach, expect, test, vi } from "vitest";
import { startCopy } from "../src/ui/copy";

startCopy();
beforeEach(() => {
  vi.useFakeTimers();
  document.body.innerHTML = '<pre id="line">gpusched submit</pre><button data-copy="#line">Copy</button>';
});

async function press(): Promise<string | undefined> {
  const button = document.querySelector("button");
  button?.click();
  await vi.advanceTimersByTimeAsync(10);
  const text = button?.textContent;
  await vi.advanceTimersByTimeAsync(2000);
  expect(button?.textContent).toBe("Copy");
  return text;
}

test("copy uses the clipboard, or selects the text", async () => {
  const written = vi.fn(async (_: string): Promise<void> => undefined);
  vi.stubGlobal("navigator", { clipboard: { writeText: written } });
  expect([await press(), written.mock.lastCall]).toEqual(["Copied", ["gpusched submit"]]);
  vi.stubGlobal("navigator", {});
  const old = vi.fn(() => true);
  Object.assign(document, { execCommand: old });
  expect([await press(), String(getSelection())]).toEqual(["Copied", "gpusched submit"]);
  old.mockReturnValue(false);
  expect(await press()).toBe("Press Ctrl-C");
});

// The submit form: invalid fields are marked, but not while typing.
import { beforeEach, expect, test, vi } from "vitest";
import { keepDraft, startMarks, refreshRestored } from "../src/pages/submit/draft";

startMarks();

function settle(wrong: Record<string, string>): void {
  const panel = document.getElementById("equivalent");
  if (panel === null) throw new Error("no panel");
  panel.innerHTML = Object.entries(wrong).map(([name, text]) => `<span hidden data-wrong="${name}">${text}</span>`).join("");
  // HTMX tells it of each piece that it put there.
  (panel.firstElementChild ?? panel).dispatchEvent(new CustomEvent("htmx:afterSettle", { bubbles: true, detail: { target: panel } }));
}

const field = (name: string): HTMLInputElement => document.getElementById(`id_${name}`) as HTMLInputElement;

beforeEach(() => {
  document.body.innerHTML = `<form hx-target="#equivalent"><div class="field"><input id="id_command" name="command"></div>
    <details><div class="field"><input id="id_array" name="array"></div></details></form><aside id="equivalent"></aside>`;
});

test("an invalid field is marked on blur and cleared when corrected", () => {
  field("command").focus();
  settle({ command: "a quote is not closed" });
  expect(field("command").hasAttribute("aria-invalid")).toBe(false);
  field("command").blur();
  settle({ command: "a quote is not closed" });
  settle({ command: "a quote is not closed" });
  expect(field("command").getAttribute("aria-invalid")).toBe("true");
  expect(document.getElementById(field("command").getAttribute("aria-describedby") ?? "")?.textContent).toBe("a quote is not closed");
  expect(document.querySelectorAll(".field-error")).toHaveLength(1);
  field("command").focus();
  settle({});
  expect(field("command").hasAttribute("aria-invalid")).toBe(false);
  expect(document.querySelector(".field-error")).toBeNull();
});

test("an invalid folded field is unfolded", () => {
  settle({ array: "must be a count like 100" });
  expect(document.querySelector("details")?.open).toBe(true);
  expect(document.querySelector(".field-error")?.id).toBe("e_array");
});

test("errors of the last submit stay until the form is in use and all fields are valid", () => {
  document.querySelector("form")?.insertAdjacentHTML("afterbegin", '<div class="note bad" role="alert">ask for less</div>');
  settle({ command: "a quote is not closed" });
  settle({});
  expect(document.querySelector("form .note.bad")?.textContent).toBe("ask for less");
  field("array").focus();
  settle({ command: "a quote is not closed" });
  expect(document.querySelector("form .note.bad")?.textContent).toBe("ask for less");
  settle({});
  expect(document.querySelector("form .note.bad")).toBeNull();
});

test("restored values reload the panel once and unfold fields", () => {
  const heard = vi.fn();
  document.querySelector("form")?.setAttribute("data-restored", "");
  document.addEventListener("change", heard);
  refreshRestored();
  expect(heard).not.toHaveBeenCalled();
  field("command").value = "python train.py";
  field("array").value = "100";
  refreshRestored();
  expect(heard).toHaveBeenCalledTimes(1);
  expect(document.querySelector("details")?.open).toBe(true);
  document.removeEventListener("change", heard);
});

test("typed values survive a reload but not a new visit", () => {
  const load = (isReload: boolean): string => {
    document.body.innerHTML = '<form data-restored><input id="id_command" name="command" value=""><input type="hidden" name="key" value="1"></form>';
    refreshRestored(isReload);
    return field("command").value;
  };
  load(false);
  field("command").value = "python train.py";
  keepDraft();
  expect(load(true)).toBe("python train.py");
  keepDraft();
  expect(load(false)).toBe("");
  expect(load(true)).toBe("");
});

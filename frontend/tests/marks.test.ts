// The submit form: the field that the panel beside it says is wrong is marked, not while somebody types into it.
import { beforeEach, expect, test, vi } from "vitest";
import { keepDraft, startMarks, refreshRestored } from "../src/pages/submit/draft";

startMarks();

function settle(wrong: Record<string, string>): void {
  const panel = document.getElementById("equivalent");
  if (panel === null) throw new Error("no panel");
  panel.innerHTML = Object.entries(wrong).map(([name, said]) => `<span hidden data-wrong="${name}">${said}</span>`).join("");
  // HTMX tells it of each piece that it put there.
  (panel.firstElementChild ?? panel).dispatchEvent(new CustomEvent("htmx:afterSettle", { bubbles: true, detail: { target: panel } }));
}

const field = (name: string): HTMLInputElement => document.getElementById(`id_${name}`) as HTMLInputElement;

beforeEach(() => {
  document.body.innerHTML = `<form hx-target="#equivalent"><div class="field"><input id="id_command" name="command"></div>
    <details><div class="field"><input id="id_array" name="array"></div></details></form><aside id="equivalent"></aside>`;
});

test("a field that is wrong is marked with its sentence once it is left, and is well as soon as it is mended", () => {
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

test("one that is folded away is shown", () => {
  settle({ array: "must be a count like 100" });
  expect(document.querySelector("details")?.open).toBe(true);
  expect(document.querySelector(".field-error")?.id).toBe("e_array");
});

test("a refusal goes once what was refused is mended, and stays while a field is wrong", () => {
  document.querySelector("form")?.insertAdjacentHTML("afterbegin", '<div class="note bad" role="alert">ask for less</div>');
  settle({ command: "a quote is not closed" });
  expect(document.querySelector("form .note.bad")?.textContent).toBe("ask for less");
  settle({});
  expect(document.querySelector("form .note.bad")).toBeNull();
});

test("what the browser put back is told to the panel once, and shown where it was folded away", () => {
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

test("what was typed is there again after a reload, and not in a form that is opened anew", () => {
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

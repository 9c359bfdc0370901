// Shortcuts with two listeners: a handled key is not handled twice.
import { expect, test, vi } from "vitest";
import { fleet } from "../src/pages/fleet/view";
import { startKeyboard } from "../src/ui/keyboard";
import type { Page } from "../src/live/regions";
import type { DeviceRow, NodeRow } from "../src/live/topics";

test("g t opens the tenants without toggling the table; t alone toggles it", () => {
  document.body.innerHTML = '<button data-fleet-table aria-pressed="false"></button><section></section>';
  const toggle = document.querySelector("button") as HTMLButtonElement;
  const go = vi.fn<(href: string) => void>();
  startKeyboard(go);
  const view = fleet(document.querySelector("section") as HTMLElement, {} as Page);
  const press = (key: string): boolean => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const device = { id: 1, index: 0, uuid: "GPU-1", model: "A100", health: "ok", cell: "free", held: null, jobs: [], reading: null } as unknown as DeviceRow;
  const node = { name: "n1", state: "online", intent: "open", labels: {}, jobs: [], devices: [device] } as unknown as NodeRow;
  view.draw({ status: "ready", seq: 1, rows: new Map([["n1", node]]), error: null, hasRows: true });
  press("g");
  press("t");
  expect([go.mock.lastCall?.[0], toggle.getAttribute("aria-pressed")]).toEqual(["/tenants/", "false"]);
  press("t");
  expect(toggle.getAttribute("aria-pressed")).toBe("true");
  view.close?.();
});

test("an outside click closes menus; a press begun inside does not", () => {
  document.body.innerHTML = `<details class="menu"><summary id="bell">bell</summary><p id="in">text</p></details>
    <details class="menu"><summary id="account">account</summary></details>
    <details class="confirm"><summary>Cancel…</summary><button id="yes">yes</button></details><main id="page"></main>`;
  startKeyboard(() => undefined);
  const all = [...document.querySelectorAll("details")];
  const states = (): boolean[] => all.map((element) => element.open);
  const open = (): void => all.forEach((element) => (element.open = true));
  const at = (id: string): Element => document.getElementById(id) as Element;
  const press = (id: string): unknown => at(id).dispatchEvent(new Event("pointerdown", { bubbles: true }));
  const click = (id: string, detail = 1): unknown => at(id).dispatchEvent(new MouseEvent("click", { bubbles: true, detail }));
  open();
  press("page");
  click("page");
  expect(states()).toEqual([false, false, false]);
  open();
  press("in");
  click("page");
  expect(states()).toEqual([true, false, false]);
  // By the keyboard: no pointer was pressed for it.
  open();
  click("account", 0);
  expect(states().slice(0, 1)).toEqual([false]);
  open();
  at("yes").addEventListener("click", () => at("yes").remove());
  press("yes");
  click("yes");
  expect(states()).toEqual([false, false, true]);
});

test("j, k and x act on the row of a focused checkbox", () => {
  document.body.innerHTML = `<main><table class="rows"><tbody>${[1, 2].map((id) => `<tr data-key="${id}"><td><input type="checkbox" data-select="${id}"></td></tr>`).join("")}</tbody></table>
    <input data-filter></main>`;
  startKeyboard(() => undefined);
  const [first, second] = [...document.querySelectorAll("tr")];
  const press = (target: Element | null, key: string): unknown => target?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const box = first?.querySelector("input");
  box?.focus();
  press(box ?? null, "j");
  expect(document.activeElement).toBe(second);
  const filter = document.querySelector<HTMLInputElement>("[data-filter]");
  filter?.focus();
  press(filter, "k");
  expect(document.activeElement).toBe(filter);
});

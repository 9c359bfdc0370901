// The keyed table: in place, in order, still under the pointer.
import { beforeEach, expect, test } from "vitest";
import { type Line, LiveTable } from "../src/ui/rows";

interface Thing {
  name: string;
}

let table: LiveTable<Thing>;
const lines = (...names: string[]): Line<Thing>[] => names.map((name) => ({ key: name[0] as string, row: { name } }));
const rows = (): HTMLElement[] => [...table.element.querySelectorAll<HTMLElement>("tbody tr")];
const order = (): string => rows().map((tr) => tr.dataset.key).join("");
const pill = (): HTMLElement => table.element.querySelector(".pill") as HTMLElement;
function point(kind: string): void {
  table.element.querySelector("tbody")?.dispatchEvent(new Event(kind));
}

beforeEach(() => {
  table = new LiveTable<Thing>([{ label: "Name", cell: (thing) => thing.name }]);
  document.body.replaceChildren(table.element);
});

test("order, removal and insertion keep the same elements", () => {
  table.update(lines("a", "b", "c"));
  const [a, , c] = rows();
  table.update(lines("c", "d", "a"));
  expect(order()).toBe("cda");
  expect(rows()[0]).toBe(c);
  expect(rows()[2]).toBe(a);
});

test("a changed row updates in place; an equal one is untouched", () => {
  const first = lines("a1", "b1");
  table.update(first);
  const cell = rows()[0]?.querySelector("td");
  table.update([{ key: "a", row: { name: "a2" } }, first[1] as Line<Thing>]);
  expect(rows()[0]?.querySelector("td")).toBe(cell);
  expect(cell?.textContent).toBe("a2");
});

test("under the pointer nothing moves, and a pill counts new rows", () => {
  table.update(lines("a1", "b1"));
  point("pointerenter");
  table.update(lines("x", "y", "b2", "a1"));
  expect(order()).toBe("ab");
  expect(rows()[1]?.textContent).toBe("b2");
  expect(pill().hidden).toBe(false);
  expect(pill().textContent).toBe("2 new");
  point("pointerleave");
  expect(order()).toBe("xyba");
  expect(pill().hidden).toBe(true);
});

test("the pill lets the new rows in", () => {
  table.update(lines("a"));
  point("pointerenter");
  table.update(lines("b"));
  expect(rows()[0]?.classList.contains("is-gone")).toBe(true);
  pill().click();
  expect(order()).toBe("b");
});

test("the pointer on its way to the pill still holds the rows", () => {
  const body = table.element.querySelector("tbody") as HTMLElement;
  const leave = (from: HTMLElement, to: HTMLElement): boolean => from.dispatchEvent(Object.assign(new Event("pointerleave"), { relatedTarget: to }));
  table.update(lines("a"));
  point("pointerenter");
  table.update(lines("b", "a"));
  leave(body, pill());
  leave(pill(), body);
  expect([order(), pill().hidden]).toEqual(["a", false]);
  leave(body, document.body);
  expect([order(), pill().hidden]).toEqual(["ba", true]);
});

test("names are text, never markup", () => {
  table.update(lines("<img src=x onerror=alert(1)>"));
  expect(table.element.querySelector("img")).toBeNull();
  expect(rows()[0]?.textContent).toContain("<img");
});

test("random histories end in the requested order", () => {
  let seed = 7;
  const random = (): number => (seed = (seed * 16807) % 2147483647) / 2147483647;
  for (let step = 0; step < 100; step += 1) {
    const names = [..."abcdefgh"].filter(() => random() < 0.6).sort(() => random() - 0.5);
    table.update(lines(...names));
    expect(order()).toBe(names.join(""));
  }
});

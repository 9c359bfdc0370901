// Sortable tables: heads, and the list for phones.
import { expect, test } from "vitest";
import { h } from "../src/ui/dom";
import { Sorting, sortButton } from "../src/ui/sorting";

function make(): { sorting: Sorting; asked: string[]; heads: HTMLElement[]; list: HTMLSelectElement } {
  const heads = [sortButton("Node", "node"), sortButton("Power", "power", true)];
  const table = h("table", {}, h("tr", {}, h("th", {}, "Why"), ...heads.map((head) => h("th", {}, head))));
  const requests: string[] = [];
  const sorting = new Sorting(table, (sort) => requests.push(sort));
  document.body.replaceChildren(sorting.choice, table);
  return { sorting, asked: requests, heads, list: sorting.choice.querySelector("select") as HTMLSelectElement };
}

test("a head cycles through both orders and none", () => {
  const { sorting, asked, heads } = make();
  for (const now of ["", "-power", "power", "node"]) {
    sorting.show(now);
    heads[1]?.click();
  }
  expect(asked).toEqual(["-power", "power", "", "-power"]);
  expect(heads.map((head) => head.parentElement?.getAttribute("aria-sort"))).toEqual(["ascending", "none"]);
});

test("the list has both orders of each sortable column and shows the current one", () => {
  const { sorting, asked, list } = make();
  expect([...list.options].map((option) => [option.value, option.text])).toEqual([
    ["", "usual order"], ["node", "Node, ascending"], ["-node", "Node, descending"], ["-power", "Power, descending"], ["power", "Power, ascending"],
  ]);
  expect(list.labels?.[0]?.textContent).toContain("Sort by");
  const messages = (sort: string): string => {
    sorting.show(sort);
    return list.value;
  };
  expect(["-node", "power", "no-column", ""].map(messages)).toEqual(["-node", "power", "", ""]);
  list.value = "-power";
  list.dispatchEvent(new Event("change"));
  expect(asked).toEqual(["-power"]);
});

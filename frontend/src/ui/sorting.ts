// Sort a table by its URL (`sort=gpus`, or `-gpus` for descending): sortable column heads and,
// for phones without heads, a list.
import { h } from "./dom";

export const sortOf = (search: string): string => new URLSearchParams(search).get("sort") ?? "";

/** The button of a sortable head, handled by `Sorting`. */
export function sortButton(label: string, sort: string, isDownFirst = false): HTMLElement {
  return h("button", { type: "button", class: "sort", "data-sort": sort, "data-down": isDownFirst ? "yes" : "no" }, label);
}

/** Both orders of a column, the more common first. */
function orders({ dataset: { sort = "", down } }: HTMLElement): [string, string] {
  return down === "yes" ? [`-${sort}`, sort] : [sort, `-${sort}`];
}

const isDown = (sort: string): boolean => sort.startsWith("-");

export class Sorting {
  private readonly list = h("select", {}, h("option", { value: "" }, "usual order"));
  /** The style sheet shows it where it hides the heads. */
  readonly choice = h("div", { class: "toolbar sort-by" }, h("label", {}, "Sort by ", this.list));
  private now = "";

  /** `onSort` receives a column's name, with - for descending, or "". */
  constructor(
    private readonly table: Element,
    onSort: (sort: string) => void,
  ) {
    for (const head of this.heads()) this.list.append(...orders(head).map((sort) => h("option", { value: sort }, `${head.textContent}, ${isDown(sort) ? "descending" : "ascending"}`)));
    this.list.addEventListener("change", () => onSort(this.list.value));
    table.addEventListener("click", (event) => {
      const head = event.target instanceof Element ? event.target.closest<HTMLElement>("[data-sort]") : null;
      if (head === null) return;
      const [first, second] = orders(head);
      onSort(this.now === first ? second : this.now === second ? "" : first);
    });
  }

  /** Show the current order. */
  show(now: string): void {
    this.now = now;
    for (const head of this.heads()) {
      head.parentElement?.setAttribute("aria-sort", !orders(head).includes(now) ? "none" : isDown(now) ? "descending" : "ascending");
    }
    this.list.value = now;
    if (this.list.selectedIndex < 0) this.list.value = "";
  }

  private heads(): NodeListOf<HTMLElement> {
    return this.table.querySelectorAll("[data-sort]");
  }
}

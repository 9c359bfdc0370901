// A table in the order that its address asks for (`sort=gpus`, or `-gpus` for the other way): heads of columns that sort and,
// for phones, where there are no heads, a list of the same.
import { h } from "./dom";

export const sortOf = (search: string): string => new URLSearchParams(search).get("sort") ?? "";

/** What a head that sorts shows, and what `Sorting` hears. */
export function sortButton(label: string, sort: string, isDownFirst = false): HTMLElement {
  return h("button", { type: "button", class: "sort", "data-sort": sort, "data-down": isDownFirst ? "yes" : "no" }, label);
}

/** Both orders of a column, the first the one that people mean more often. */
function orders({ dataset: { sort = "", down } }: HTMLElement): [string, string] {
  return down === "yes" ? [`-${sort}`, sort] : [sort, `-${sort}`];
}

const isDown = (sort: string): boolean => sort.startsWith("-");

export class Sorting {
  private readonly list = h("select", {}, h("option", { value: "" }, "usual order"));
  /** The style sheet shows it where it hides the heads. */
  readonly choice = h("div", { class: "toolbar sort-by" }, h("label", {}, "Sort by ", this.list));
  private now = "";

  /** `asked`: a column's name, with - the other way; "": none. */
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

  /** Says how the rows are sorted. */
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

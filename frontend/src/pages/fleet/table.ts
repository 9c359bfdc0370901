// The fleet as a table, with the same data as the canvas.
import { h, plural } from "../../ui/dom";
import { type Line, LiveTable } from "../../ui/rows";
import { Sorting, sortButton } from "../../ui/sorting";
import { type Spotlight, fits, isPlain, describeSpotlight } from "./address";
import { COLUMNS, inOrder } from "./columns";
import { type FleetCell, type Model, nameOf } from "./model";

export class FleetTable {
  private readonly table: LiveTable<FleetCell>;
  private readonly sorting: Sorting;
  readonly element: HTMLElement;
  private cellByName = new Map<string, FleetCell>();
  private sort = "";

  /** Whether cells outside the highlight are shown too. */
  private isAll = false;
  private readonly summaryText = h("span");
  private readonly switch = h("button", { type: "button", class: "small" });
  private readonly summary = h("p", { class: "lit" }, this.summaryText, this.switch);

  /** `opened`: show a GPU in the panel; `sorted`: change the order. */
  constructor(opened: (name: string) => void, changed: () => void, sorted: (sort: string) => void) {
    this.table = new LiveTable<FleetCell>(COLUMNS.map((column) => ({ ...column, label: sortButton(column.label, column.sort, column.isDownFirst) })));
    this.sorting = new Sorting(this.table.element, sorted);
    this.element = h("div", { class: "card flush" }, this.summary, this.sorting.choice, this.table.element);
    this.switch.addEventListener("click", () => {
      this.isAll = !this.isAll;
      changed();
    });
    const open = (event: Event, row: Element | null): void => {
      const name = row instanceof HTMLTableRowElement && this.cellByName.has(row.dataset.key ?? "") ? row.dataset.key : undefined;
      if (name === undefined) return;
      // The page's shortcut would open the node.
      event.preventDefault();
      opened(name);
    };
    this.element.addEventListener("keydown", (event) => event.key === "Enter" && event.target instanceof Element && open(event, event.target));
    this.element.addEventListener("click", (event) => event.target instanceof Element && event.target.closest("a, button") === null && open(event, event.target.closest("tr")));
  }

  /** Show the model in its groups, or sorted; `gpu`: the name of the selected GPU. */
  update({ groups, cells }: Model, light: Spotlight, gpu: string | null, sort = ""): void {
    const isVisible = (cell: FleetCell): boolean => isPlain(light) || this.isAll || fits(cell, light);
    const next = new Map<string, FleetCell>();
    const lines: Line<FleetCell>[] = [];
    const ordered = inOrder(cells.filter(isVisible), sort);
    let from = 0;
    for (const group of ordered === null ? groups : []) {
      const to = from + group.nodes.reduce((sum, node) => sum + node.cells, 0);
      const members = cells.slice(from, to).filter(isVisible);
      if (group.title !== "" && members.length > 0) lines.push({ key: `group:${group.title.split(" · ")[0]}`, heading: group.title });
      lines.push(...members.map((cell) => this.line(cell, next)));
      from = to;
    }
    lines.push(...(ordered ?? []).map((cell) => this.line(cell, next)));
    this.cellByName = next;
    // Apply a requested order even under the pointer.
    this.table.update(lines, sort !== this.sort);
    this.sort = sort;
    this.sorting.show(sort);
    this.mark(light, gpu);
    this.showSummary(cells, light);
  }

  /** The row of a GPU, to give it the focus. */
  rowOf(name: string): HTMLElement | null {
    return this.rows().find((tr) => tr.dataset.key === name) ?? null;
  }

  private line(cell: FleetCell, next: Map<string, FleetCell>): Line<FleetCell> {
    const key = nameOf(cell);
    const old = this.cellByName.get(key);
    const row = old !== undefined && old.node === cell.node ? old : cell;
    next.set(key, row);
    return { key, row };
  }

  private mark(light: Spotlight, gpu: string | null): void {
    for (const tr of this.rows()) {
      const cell = this.cellByName.get(tr.dataset.key ?? "");
      tr.classList.toggle("is-lit", cell !== undefined && !isPlain(light) && fits(cell, light));
      if (tr.dataset.key === gpu) tr.setAttribute("aria-current", "true");
      else tr.removeAttribute("aria-current");
    }
  }

  private showSummary(cells: readonly FleetCell[], light: Spotlight): void {
    this.summary.hidden = isPlain(light);
    const count = cells.filter((cell) => fits(cell, light)).length;
    this.summaryText.textContent = `${plural(count, "GPU")} of ${cells.length}: ${describeSpotlight(light)}`;
    this.switch.textContent = this.isAll ? "Show only these" : "Show all GPUs";
  }

  private rows(): HTMLElement[] {
    return [...this.element.querySelectorAll<HTMLElement>("tbody tr[data-key]")];
  }
}

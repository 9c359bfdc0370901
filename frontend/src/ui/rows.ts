// A table of keyed rows that updates in place and moves nothing under the pointer.
import { type Child, add, h, plural } from "./dom";
import { morphChildren } from "./morph";

export interface Column<R> {
  /** The head of the column. */
  label: string | HTMLElement;
  cell(row: R): Child | Child[];
  className?: string;
}

/** A row, or the heading of a group. */
export type Line<R> = { key: string; row: R } | { key: string; heading: string };

const PLACE = "position: sticky; top: 88px; z-index: 2; height: 0; display: flex; justify-content: center; align-items: flex-start";

export class LiveTable<R extends object> {
  readonly element: HTMLElement;
  private readonly body = h("tbody");
  private readonly pill = h("button", { class: "pill", type: "button", hidden: true });
  private readonly rowByKey = new Map<string, { tr: HTMLTableRowElement; of: R | string }>();
  private lines: Line<R>[] = [];
  private isUnderPointer = false;

  constructor(
    private readonly columns: readonly Column<R>[],
    private readonly mark: (tr: HTMLTableRowElement, row: R) => void = () => undefined,
    classes = "rows",
  ) {
    const heads = columns.map((column) => h("th", { scope: "col", class: column.className }, column.label));
    const table = h("table", { class: classes }, h("thead", {}, h("tr", {}, ...heads)), this.body);
    // The pill floats over the table, so that it moves no row.
    const place = h("div", { class: "pill-place", style: PLACE }, this.pill);
    this.element = h("div", { class: "live-table" }, place, table);
    this.body.addEventListener("pointerenter", (event) => {
      if (event.pointerType !== "touch") this.isUnderPointer = true;
    });
    // A pointer on its way to the pill has not left the rows.
    const parts: [HTMLElement, HTMLElement][] = [[this.body, this.pill], [this.pill, this.body]];
    for (const [part, other] of parts) {
      part.addEventListener("pointerleave", (event) => {
        if (event.relatedTarget instanceof Node && other.contains(event.relatedTarget)) return;
        this.isUnderPointer = false;
        this.arrange();
      });
    }
    this.pill.addEventListener("click", () => this.arrange());
  }

  /** `isAsked`: the user requested this order, so apply it at once. */
  update(lines: Line<R>[], isAsked = false): void {
    this.lines = lines;
    for (const line of lines) {
      const entry = this.rowByKey.get(line.key);
      const of = "row" in line ? line.row : line.heading;
      if (entry === undefined || entry.of === of) continue;
      entry.of = of;
      if ("row" in line) this.fill(entry.tr, line.row);
      else entry.tr.replaceChildren(this.heading(line.heading));
    }
    if (this.isUnderPointer && this.rowByKey.size > 0 && !isAsked) this.hold();
    else this.arrange();
  }

  /** Mark removed rows and count new ones, but move nothing. */
  private hold(): void {
    const keys = new Set(this.lines.map((line) => line.key));
    for (const [key, { tr }] of this.rowByKey) tr.classList.toggle("is-gone", !keys.has(key));
    const added = this.lines.filter((line) => "row" in line && !this.rowByKey.has(line.key)).length;
    const removed = [...this.rowByKey.keys()].filter((key) => !keys.has(key)).length;
    this.pill.hidden = added + removed === 0 && this.isInOrder();
    this.pill.textContent = added > 0 ? `${added} new` : removed > 0 ? `${plural(removed, "row")} gone` : "new order";
  }

  private isInOrder(): boolean {
    const order = this.lines.map((line) => line.key).join("\n");
    return order === [...this.body.children].map((tr) => (tr as HTMLElement).dataset.key).join("\n");
  }

  private arrange(): void {
    this.pill.hidden = true;
    const focused = document.activeElement;
    const keys = new Set(this.lines.map((line) => line.key));
    for (const [key, { tr }] of this.rowByKey) {
      if (keys.has(key)) continue;
      tr.remove();
      this.rowByKey.delete(key);
    }
    let place = this.body.firstElementChild;
    for (const line of this.lines) {
      const tr = this.rowByKey.get(line.key)?.tr ?? this.make(line);
      if (tr === place) place = place.nextElementSibling;
      else this.body.insertBefore(tr, place);
    }
    const isLost = focused instanceof HTMLElement && focused !== document.activeElement;
    if (isLost && this.body.contains(focused)) focused.focus({ preventScroll: true });
  }

  private make(line: Line<R>): HTMLTableRowElement {
    const isRow = "row" in line;
    const tr = h("tr", { "data-key": line.key, class: isRow ? null : "group" });
    this.rowByKey.set(line.key, { tr, of: isRow ? line.row : line.heading });
    if (isRow) {
      tr.tabIndex = -1;
      this.fill(tr, line.row);
    } else {
      tr.append(this.heading(line.heading));
    }
    return tr;
  }

  private heading(text: string): HTMLElement {
    return h("th", { colspan: this.columns.length, scope: "rowgroup" }, text);
  }

  private fill(tr: HTMLTableRowElement, row: R): void {
    this.columns.forEach((column, at) => {
      const content = column.cell(row);
      const label = typeof column.label === "string" ? column.label : column.label.textContent;
      const cell = h("td", { "data-label": label, class: column.className });
      // On a phone a cell is a grid of label and content, so the content must be one element.
      add(cell, Array.isArray(content) && content.length > 1 ? [h("div", {}, ...content)] : [content].flat());
      const old = tr.cells[at];
      if (old === undefined) tr.append(cell);
      else morphChildren(old, cell);
    });
    tr.classList.remove("is-gone");
    this.mark(tr, row);
  }
}

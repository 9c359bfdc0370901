// The selected rows of the list of jobs, and the bar of actions.
import { h, plural } from "../../ui/dom";
import type { JobRow } from "../../live/topics";
import { VERBS, perform, fitting } from "./actions";

const WORDS = { hold: "Hold", release: "Release", requeue: "Requeue…", retry: "Retry", cancel: "Cancel…" } as const;

function isAdmin(): boolean {
  return document.querySelector("form[data-act-on-several][data-admin]") !== null;
}

export class Selection {
  readonly all = h("input", { type: "checkbox", "aria-label": "Select all that are shown" });
  readonly bar = h("div", { class: "selection-bar", hidden: true, role: "group", "aria-label": "Selected jobs" });
  private readonly ids = new Set<number>();
  private readonly count = h("b");
  private readonly buttons = new Map(VERBS.map((verb) => [verb, h("button", { type: "button", class: verb === "cancel" ? "small danger" : "small" })]));
  private rows: readonly JobRow[] = [];

  constructor(private readonly changed: () => void) {
    this.makeBar();
    this.all.addEventListener("change", () => {
      for (const row of this.rows) if (this.all.checked) this.ids.add(row.id);
      if (!this.all.checked) this.ids.clear();
      this.changed();
    });
  }

  box(id: number): HTMLInputElement {
    const box = h("input", { type: "checkbox", "aria-label": `Select job ${id}`, "data-select": id });
    box.checked = this.ids.has(id);
    return box;
  }

  has(id: number): boolean {
    return this.ids.has(id);
  }

  set(id: number, isSelected: boolean): void {
    if (isSelected) this.ids.add(id);
    else this.ids.delete(id);
    this.changed();
  }

  /** Call this with the visible rows; others are deselected. */
  show(rows: readonly JobRow[]): void {
    this.rows = rows;
    const visibleIds = new Set(rows.map((row) => row.id));
    for (const id of this.ids) if (!visibleIds.has(id)) this.ids.delete(id);
    const chosen = this.chosen();
    this.all.checked = chosen.length > 0 && chosen.length === rows.length;
    this.all.indeterminate = chosen.length > 0 && chosen.length < rows.length;
    this.bar.hidden = chosen.length === 0;
    if (chosen.length > 0) this.offer(chosen);
  }

  /** Create the bar once, so that updates do not remove a pressed or focused button. */
  private makeBar(): void {
    const clear = h("button", { type: "button", class: "small" }, "Clear");
    clear.addEventListener("click", () => {
      this.ids.clear();
      this.changed();
    });
    for (const [verb, button] of this.buttons) {
      button.addEventListener("click", () => {
        const rows = fitting(verb, this.chosen(), isAdmin());
        void perform(verb, rows, () => {
          for (const row of rows) this.ids.delete(row.id);
          this.changed();
        });
      });
    }
    this.bar.append(this.count, ...this.buttons.values(), clear);
  }

  private chosen(): JobRow[] {
    return this.rows.filter((row) => this.ids.has(row.id));
  }

  private offer(chosen: readonly JobRow[]): void {
    this.count.textContent = `${plural(chosen.length, "job")} selected`;
    for (const [verb, button] of this.buttons) {
      const { length } = fitting(verb, chosen, isAdmin());
      button.disabled = length === 0;
      button.textContent = `${WORDS[verb]}${length < chosen.length ? ` (${length})` : ""}`;
    }
  }
}

// The Queue page: draws only visible lines, and moves nothing under the pointer.
import { h, plural, refill } from "../../ui/dom";
import type { Hub } from "../../live/hub";
import type { MakeView, View } from "../../live/regions";
import { Sorting, sortOf } from "../../ui/sorting";
import type { QueueTotal } from "../../live/topics";
import { empty, whenEmpty } from "../../ui/pieces";
import { Detail } from "./detail";
import { Estimates } from "./estimates";
import { changed, topicQuery, watchFilters } from "./filters";
import { Geometry } from "./geometry";
import { HeldView } from "./held";
import { COLUMNS, blankRow, headCell, headingRow, jobRow } from "./row";
import { WINDOW, Windows } from "./windows";

/** Pixels, as in the style sheet. */
const WIDE = { row: 48, heading: 36 };
const CARD = { row: 140, heading: 36 };
/** Lines drawn beyond the visible ones, and the minimum before a redraw. Table layout is
 * expensive, so few large changes are better. */
const AHEAD = 14;
const LEFT = 2;

export const queue: MakeView = (region, { hub }) => new QueueView(region, hub);

class QueueView implements View {
  private readonly body = h("tbody");
  private readonly table = h("table", { class: "rows queue" }, h("thead", {}, h("tr", {}, ...COLUMNS.map(headCell))), this.body);
  private readonly pill = h("button", { class: "pill", type: "button", hidden: true });
  private readonly summary = h("p", { class: "summary", role: "status" });
  private readonly sorting = new Sorting(this.table, (sort) => this.ask(changed(location.search, "sort", sort)));
  private readonly container = h("div", { class: "live-table" }, this.sorting.choice, h("div", { class: "pill-place" }, this.pill), this.table);
  private readonly above = h("tr", { class: "spacer", "aria-hidden": "true" });
  private readonly below = h("tr", { class: "spacer", "aria-hidden": "true" });
  private readonly drawn = new Map<string, { tr: HTMLTableRowElement; of: unknown[] }>();
  private readonly isNarrow = matchMedia("(max-width: 640px)");
  private readonly view = new HeldView();
  private readonly detail = new Detail(() => this.draw());
  private readonly estimates = new Estimates(() => this.draw());
  private readonly none: () => Node;
  private readonly stopFilters: () => void;
  private query = topicQuery(location.search);
  private windows: Windows;
  private geometry = new Geometry([], false, WIDE);
  private isScheduled = false;
  private isWatched = false;
  private isOver = false;
  private lines = { first: 0, last: -1 };

  constructor(private readonly region: HTMLElement, private readonly hub: Hub) {
    this.none = whenEmpty(region);
    this.body.append(this.above, this.below);
    this.windows = this.watch();
    // On the container, not the rows, so that the pointer can reach the pill.
    this.container.addEventListener("pointerenter", (event) => void (event.pointerType !== "touch" && this.view.hold()));
    this.container.addEventListener("pointerleave", () => this.release());
    this.pill.addEventListener("click", () => this.adopt());
    this.stopFilters = watchFilters((search) => this.ask(search));
    this.sorting.show(sortOf(location.search));
    addEventListener("scroll", this.scrolled, { passive: true });
    addEventListener("resize", this.draw);
  }

  /** Draw in the next frame, once for many changes. */
  draw = (): void => {
    if (this.isScheduled || this.isOver) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      if (!this.isOver) this.paint();
    });
  };

  /** Redraw after a scroll only if drawn lines no longer suffice. */
  private scrolled = (): void => {
    if (this.isScheduled || this.isWatched || this.isOver) return;
    this.isWatched = true;
    requestAnimationFrame(() => {
      this.isWatched = false;
      if (!this.isScheduled && !this.isOver && this.container.isConnected && !this.reaches(this.inSight())) this.paint();
    });
  };

  close(): void {
    this.isOver = true;
    this.windows.close();
    this.estimates.close();
    this.detail.close();
    this.stopFilters();
    removeEventListener("scroll", this.scrolled);
    removeEventListener("resize", this.draw);
  }

  private watch(): Windows {
    const windows = new Windows(this.hub, this.query, () => {
      this.view.update(windows);
      this.pill.hidden = this.view.news === "";
      this.pill.textContent = this.view.news;
      this.draw();
    });
    windows.want(0, WINDOW);
    return windows;
  }

  /** Apply another URL. */
  private ask(search: string): void {
    history.replaceState(null, "", search);
    this.sorting.show(sortOf(location.search));
    const query = topicQuery(location.search);
    if (query === this.query) return;
    this.query = query;
    this.windows.close();
    this.view.clear();
    this.detail.close();
    this.windows = this.watch();
    this.draw();
    scrollTo({ top: 0 });
  }

  private release(): void {
    this.view.release();
    this.adopt();
  }

  /** Show the newest state; the pointer can hold it again. */
  private adopt(): void {
    this.view.adopt(this.windows);
    this.pill.hidden = true;
    this.draw();
  }

  private paint(): void {
    const { total } = this.view;
    if (this.windows.error !== null) return refill(this.region, empty("This filter is not valid. ", h("a", { href: location.pathname }, "Show all"), "."));
    this.container.classList.toggle("is-waiting", total === null);
    if (total === null) return;
    const words = describe(total);
    if (this.summary.textContent !== words) this.summary.textContent = words;
    if (total.matching === 0) return refill(this.region, this.query === "" ? this.none() : noneLikeThis(), total.jobs > 0 && this.summary.cloneNode(true));
    if (this.container.parentElement !== this.region) this.region.replaceChildren(this.summary, this.container);
    const isGrouped = !this.query.includes("sort=");
    this.geometry = new Geometry(total.groups, isGrouped, this.isNarrow.matches ? CARD : WIDE, this.detail.placed((id) => this.view.placeOf(id)));
    this.table.setAttribute("aria-rowcount", String(this.geometry.lines + 1));
    this.lay();
  }

  /** Draw the visible lines between two spacers. */
  private lay(): void {
    const { geometry } = this;
    const sight = this.inSight();
    const first = Math.max(0, sight.first - AHEAD);
    const last = Math.min(geometry.lines - 1, sight.last + AHEAD);
    this.lines = { first, last };
    // Request the next rows before they are visible.
    this.windows.want(geometry.jobFrom(first) - WINDOW / 2, geometry.jobFrom(last) + WINDOW / 2);
    const lines: HTMLTableRowElement[] = [];
    for (let line = first; line <= last; line += 1) {
      const tr = this.line(line);
      lines.push(tr);
      if (tr.dataset.key === this.detail.key) lines.push(this.detail.element);
    }
    this.estimates.want(lines.map((tr) => Number(tr.dataset.key)).filter((id) => id > 0));
    this.arrange(lines);
    this.above.style.height = `${geometry.top(first)}px`;
    this.below.style.height = `${Math.max(0, geometry.height - geometry.top(last + 1))}px`;
  }

  private inSight(): { first: number; last: number } {
    const top = -this.body.getBoundingClientRect().top;
    return { first: this.geometry.lineAt(Math.max(0, top)), last: this.geometry.lineAt(Math.max(0, top + innerHeight)) };
  }

  private reaches({ first, last }: { first: number; last: number }): boolean {
    return this.lines.first <= Math.max(0, first - LEFT) && this.lines.last >= Math.min(this.geometry.lines - 1, last + LEFT);
  }

  private line(line: number): HTMLTableRowElement {
    const item = this.geometry.at(line);
    if ("heading" in item) {
      const { heading } = item;
      return this.cachedRow(`group:${heading.group}`, [heading.jobs, heading.gpus], () => headingRow(heading));
    }
    const { row, isGone } = this.view.row(item.job);
    if (row === null) return this.cachedRow(`blank:${item.job}`, [], () => blankRow(`blank:${item.job}`));
    const isOpen = this.detail.key === String(row.id);
    const estimate = this.estimates.of(row.id);
    const tr = this.cachedRow(String(row.id), [row, estimate, isOpen], () => jobRow(row, estimate, isOpen, () => this.detail.toggle(row.id)));
    tr.classList.toggle("is-gone", isGone);
    tr.setAttribute("aria-rowindex", String(line + 2));
    return tr;
  }

  /** Return the cached row, or a new one if its content changed. */
  private cachedRow(key: string, of: unknown[], make: () => HTMLTableRowElement): HTMLTableRowElement {
    const estimate = this.drawn.get(key);
    if (estimate !== undefined && estimate.of.every((value, at) => value === of[at])) return estimate.tr;
    const tr = make();
    if (estimate !== undefined) replace(estimate.tr, tr);
    this.drawn.set(key, { tr, of });
    return tr;
  }

  private arrange(lines: readonly HTMLTableRowElement[]): void {
    const keptRows = new Set<Element>(lines);
    for (const tr of [...this.body.children]) if (tr !== this.above && tr !== this.below && !keptRows.has(tr)) tr.remove();
    let at = this.above.nextElementSibling;
    for (const tr of lines) {
      if (tr === at) at = at.nextElementSibling;
      else this.body.insertBefore(tr, at);
    }
    for (const [key, { tr }] of this.drawn) if (!keptRows.has(tr)) this.drawn.delete(key);
  }
}

/** Keep the focus on the row or its opener. */
function replace(old: HTMLTableRowElement, fresh: HTMLTableRowElement): void {
  const focused = document.activeElement;
  const target = focused === old ? fresh : old.contains(focused) ? fresh.querySelector<HTMLElement>(focused?.tagName === "BUTTON" ? "button" : "a") : null;
  old.replaceWith(fresh);
  target?.focus({ preventScroll: true });
}

function describe(total: QueueTotal): string {
  if (total.jobs === 0) return "No jobs are waiting.";
  const all = `${plural(total.jobs, "job")} with ${plural(total.gpus, "GPU")} in the queue`;
  return total.matching === total.jobs ? `${all}.` : `${plural(total.matching, "job")} shown; ${all}.`;
}

function noneLikeThis(): HTMLElement {
  return empty("No waiting jobs match this filter. ", h("a", { href: location.pathname }, "Show all"), ".");
}

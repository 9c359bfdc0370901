// The visible queue: the newest, or, under the pointer, a held order with updated rows.
import { plural } from "../../ui/dom";
import type { QueueRow, QueueTotal } from "../../live/topics";
import { WINDOW, type Window, type Windows } from "./windows";

type Known = Pick<Windows, "byNumber" | "total">;

export class HeldView {
  total: QueueTotal | null = null;
  /** The changes since the hold, or "". */
  news = "";
  private readonly visible = new Map<number, Window>();
  private latest: ReadonlyMap<number, Window> = new Map();
  private isHolding = false;

  update(now: Known): void {
    this.latest = now.byNumber;
    if (!this.isHolding || this.total === null) return this.adopt(now);
    for (const [number, window] of now.byNumber) if (!this.visible.has(number)) this.visible.set(number, window);
    this.news = this.difference(now);
  }

  hold(): void {
    this.isHolding = true;
  }

  release(): void {
    this.isHolding = false;
  }

  /** Clear all rows, for another filter. */
  clear(): void {
    this.visible.clear();
    this.latest = new Map();
    this.total = null;
    this.news = "";
  }

  /** Return the job at an index; one that has left the queue is marked as gone. */
  row(job: number): { row: QueueRow | null; isGone: boolean } {
    const number = Math.floor(job / WINDOW);
    const window = this.visible.get(number);
    const id = window?.order[job - number * WINDOW];
    if (window === undefined || id === undefined) return { row: null, isGone: false };
    for (const each of this.latest.values()) {
      const newer = each.rows.get(String(id));
      if (newer !== undefined) return { row: newer, isGone: false };
    }
    return { row: window.rows.get(String(id)) ?? null, isGone: this.isHolding && this.latest.has(number) };
  }

  placeOf(id: number): number | null {
    for (const [number, { order }] of this.visible) {
      const at = order.indexOf(id);
      if (at >= 0) return number * WINDOW + at;
    }
    return null;
  }

  /** Show the newest state. */
  adopt(now: Known): void {
    this.total = now.total;
    this.latest = now.byNumber;
    this.visible.clear();
    for (const [number, window] of now.byNumber) this.visible.set(number, window);
    this.news = "";
  }

  private difference(now: Known): string {
    const [previous, current] = [ids(this.visible), ids(now.byNumber)];
    const [rows, newer] = [this.total?.rows ?? 0, now.total?.rows ?? 0];
    // If not all rows are loaded, compare only the totals.
    const isWhole = previous.size === rows && current.size === newer;
    const added = isWhole ? [...current].filter((id) => !previous.has(id)).length : newer - rows;
    if (added > 0) return isWhole ? `${added} new` : `${plural(added, "row")} more`;
    const removed = isWhole ? [...previous].filter((id) => !current.has(id)).length : rows - newer;
    if (removed > 0) return isWhole ? `${plural(removed, "row")} gone` : `${plural(removed, "row")} fewer`;
    for (const [number, { order }] of this.visible) {
      const newer = now.byNumber.get(number)?.order;
      if (newer !== undefined && newer.some((id, at) => id !== order[at])) return "new order";
    }
    return "";
  }
}

function ids(windows: ReadonlyMap<number, Window>): ReadonlySet<number> {
  return new Set([...windows.values()].flatMap(({ order }) => order));
}

// What of the queue is shown: the newest, or while the pointer is over it the order of that moment with newer contents.
import { plural } from "../../ui/dom";
import type { QueueRow, QueueTotal } from "../../live/topics";
import { WINDOW, type Window, type Windows } from "./windows";

type Known = Pick<Windows, "known" | "total">;

export class Held {
  total: QueueTotal | null = null;
  /** What has changed since, in words; "" while nothing has, or nothing is held. */
  news = "";
  private readonly shown = new Map<number, Window>();
  private latest: ReadonlyMap<number, Window> = new Map();
  private isHolding = false;

  take(now: Known): void {
    this.latest = now.known;
    if (!this.isHolding || this.total === null) return this.adopt(now);
    for (const [number, window] of now.known) if (!this.shown.has(number)) this.shown.set(number, window);
    this.news = this.difference(now);
  }

  hold(): void {
    this.isHolding = true;
  }

  release(): void {
    this.isHolding = false;
  }

  /** Another filter: nothing that was known counts. */
  forget(): void {
    this.shown.clear();
    this.latest = new Map();
    this.total = null;
    this.news = "";
  }

  /** The job with this number in the list; one that has left it meanwhile is still told, as gone. */
  row(job: number): { row: QueueRow | null; isGone: boolean } {
    const number = Math.floor(job / WINDOW);
    const window = this.shown.get(number);
    const id = window?.order[job - number * WINDOW];
    if (window === undefined || id === undefined) return { row: null, isGone: false };
    for (const each of this.latest.values()) {
      const newer = each.rows.get(String(id));
      if (newer !== undefined) return { row: newer, isGone: false };
    }
    return { row: window.rows.get(String(id)) ?? null, isGone: this.isHolding && this.latest.has(number) };
  }

  placeOf(id: number): number | null {
    for (const [number, { order }] of this.shown) {
      const at = order.indexOf(id);
      if (at >= 0) return number * WINDOW + at;
    }
    return null;
  }

  /** Shows the newest. */
  adopt(now: Known): void {
    this.total = now.total;
    this.latest = now.known;
    this.shown.clear();
    for (const [number, window] of now.known) this.shown.set(number, window);
    this.news = "";
  }

  private difference(now: Known): string {
    const [before, after] = [ids(this.shown), ids(now.known)];
    const [rows, newer] = [this.total?.rows ?? 0, now.total?.rows ?? 0];
    // Where not all rows are known, one that was not seen may have moved into sight: only the totals can be compared.
    const isWhole = before.size === rows && after.size === newer;
    const come = isWhole ? [...after].filter((id) => !before.has(id)).length : newer - rows;
    if (come > 0) return isWhole ? `${come} new` : `${plural(come, "row")} more`;
    const gone = isWhole ? [...before].filter((id) => !after.has(id)).length : rows - newer;
    if (gone > 0) return isWhole ? `${plural(gone, "row")} gone` : `${plural(gone, "row")} fewer`;
    for (const [number, { order }] of this.shown) {
      const newer = now.known.get(number)?.order;
      if (newer !== undefined && newer.some((id, at) => id !== order[at])) return "new order";
    }
    return "";
  }
}

function ids(windows: ReadonlyMap<number, Window>): ReadonlySet<number> {
  return new Set([...windows.values()].flatMap(({ order }) => order));
}

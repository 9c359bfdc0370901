// The canvas of the map: size, layout and colours. It lays out only when groups or width change.
import { h } from "../../ui/dom";
import { type Layout, type LayoutGroup, layout } from "./layout";
import { type CellPaint, type Context, type Stamp, paint, paintCards, paintCell, paintFocus } from "./paint";
import { type Palette, readPalette } from "./palette";
import { stamps } from "./stamps";

const MIN_HEIGHT = 320;

export class Chart {
  readonly canvas = h("canvas");
  placed: Layout = layout([], 1, 1);
  /** Cards and names, drawn when the layout or the theme changes and copied under the cells. */
  private readonly ground = h("canvas");
  private stamp: Stamp = paintCell;
  private drawn: readonly CellPaint[] = [];
  private palette: Palette;
  private shape = "";
  private width = 0;
  private height = 0;

  constructor(private readonly region: HTMLElement) {
    this.palette = readPalette(region);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "map of GPUs");
  }

  label(words: string): void {
    if (this.canvas.getAttribute("aria-label") !== words) this.canvas.setAttribute("aria-label", words);
  }

  isOtherWidth(): boolean {
    return this.room() !== this.width;
  }

  arrange(groups: readonly LayoutGroup[]): void {
    const shape = groups.map((group) => `${group.title}:${group.nodes.map((node) => `${node.name}=${node.cells}`).join()}`).join(";");
    if (shape === this.shape && !this.isOtherWidth()) return;
    this.shape = shape;
    this.width = this.room();
    this.placed = layout(groups, this.width, Math.max(MIN_HEIGHT, this.below()));
    this.height = Math.ceil(this.placed.height) + 2;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.prepare();
  }

  recolour(cells: readonly CellPaint[], focused: number): void {
    this.drawn = cells;
    this.focus(focused);
  }

  focus(at: number): void {
    const context = this.canvas.getContext("2d");
    if (context === null) return;
    const ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    if (this.ground.width > 0) context.drawImage(this.ground, 0, 0, this.width, this.height);
    paint(context as Context, this.placed, this.drawn, this.palette, this.stamp);
    if (at >= 0) paintFocus(context as Context, this.placed, at, this.palette);
  }

  /** Return the screen position of a cell, or null. */
  boxOf(at: number): { left: number; top: number; size: number } | null {
    const box = this.placed.cells[at];
    if (box === undefined) return null;
    const from = this.canvas.getBoundingClientRect();
    return { left: from.left + box.x, top: from.top + box.y, size: this.placed.size };
  }

  restyle(): void {
    this.palette = readPalette(this.region);
    this.prepare();
  }

  private prepare(): void {
    const ratio = devicePixelRatio || 1;
    [this.ground.width, this.ground.height] = [this.canvas.width, this.canvas.height];
    const context = this.ground.getContext("2d");
    if (context === null) return;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paintCards(context as Context, this.placed, this.palette);
    this.stamp = stamps(this.placed.size, ratio, this.palette);
  }

  /** Return the height available below the map's top, or of a clipping frame. */
  private below(): number {
    const frame = this.region.parentElement;
    if (frame !== null && getComputedStyle(frame).overflowY === "hidden") return frame.clientHeight;
    return innerHeight - (this.region.getBoundingClientRect().top + scrollY) - 24;
  }

  private room(): number {
    return Math.max(200, Math.floor(this.region.clientWidth));
  }
}

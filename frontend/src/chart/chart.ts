// A chart in an element. The drawing library loads with the first chart.
import { h, na } from "../ui/dom";
import { type ChartData, sentence } from "./model";

/** A drawing of the lazily loaded module. */
export interface Drawing {
  draw(data: ChartData): void;
  restyle(): void;
  end(): void;
}

export class Chart {
  private drawing: Drawing | null = null;
  private data: ChartData | null = null;
  private isOver = false;

  /** `host` belongs to the chart; `missing`: the text without data. */
  constructor(private readonly host: HTMLElement, private readonly missing = "no readings recorded") {
    host.classList.add("chart");
    host.setAttribute("role", "img");
  }

  show(data: ChartData): void {
    const isFirst = this.data === null;
    this.data = data;
    this.host.setAttribute("aria-label", sentence(data));
    if (isNothing(data)) return this.empty();
    this.host.classList.remove("is-empty");
    if (this.drawing !== null) this.drawing.draw(data);
    else if (isFirst || this.host.querySelector(".na") !== null) void this.load();
  }

  restyle(): void {
    this.drawing?.restyle();
  }

  end(): void {
    this.isOver = true;
    this.drawing?.end();
    this.drawing = null;
  }

  private empty(): void {
    this.drawing?.end();
    this.drawing = null;
    this.host.classList.add("is-empty");
    this.host.style.minHeight = `${this.data?.height ?? 0}px`;
    this.host.replaceChildren(na(this.missing));
  }

  private async load(): Promise<void> {
    this.host.style.minHeight = `${this.data?.height ?? 0}px`;
    try {
      const { drawn } = await import("./draw");
      if (this.isOver || this.data === null || isNothing(this.data) || this.drawing !== null) return;
      this.host.replaceChildren();
      this.drawing = drawn(this.host);
      this.drawing.draw(this.data);
    } catch {
      this.host.replaceChildren(h("p", { class: "empty", role: "alert" }, "The chart could not be loaded. Reload the page."));
    }
  }
}

function isNothing(data: ChartData): boolean {
  return data.lines.every((line) => line.values.every((value) => value === null));
}

// The lines of a log as elements, added and removed in blocks, with search matches marked.
import { h } from "../../../ui/dom";
import type { LogLine } from "./lines";

/** The cost of a line besides its text, so that empty lines count. */
const PER_LINE = 40;

export class Screen {
  private readonly open = h("div", { class: "line" });
  private expression: RegExp | null = null;

  constructor(private readonly box: HTMLElement) {
    box.replaceChildren(this.open);
  }

  blockBelow(): HTMLElement {
    const block = h("div");
    this.box.insertBefore(block, this.open);
    return block;
  }

  /** Add a block above without moving the visible lines. */
  blockAbove(lines: readonly LogLine[]): { block: HTMLElement; size: number } {
    const distanceToEnd = this.box.scrollHeight - this.box.scrollTop;
    const block = h("div");
    const size = this.fill(block, lines);
    this.box.prepend(block);
    this.box.scrollTop = this.box.scrollHeight - distanceToEnd;
    return { block, size };
  }

  /** Add lines to a block and return its growth in characters. */
  fill(block: HTMLElement, lines: readonly LogLine[]): number {
    const fragment = document.createDocumentFragment();
    let size = 0;
    for (const line of lines) {
      const element = h("div", { class: "line" }, ...render(line));
      if (line.length === 0) element.append("\n");
      size += (element.textContent ?? "").length + PER_LINE;
      this.mark(element);
      fragment.append(element);
    }
    block.append(fragment);
    return size;
  }

  /** Show the incomplete last line. */
  showOpen(line: LogLine): void {
    this.open.replaceChildren(...render(line));
    this.mark(this.open);
  }

  get isEmpty(): boolean {
    return (this.box.textContent ?? "") === "";
  }

  /** Mark all matches; "" clears them. */
  search(text: string): void {
    this.expression = pattern(text);
    for (const line of this.box.querySelectorAll<HTMLElement>(".line")) this.mark(line);
  }

  /** Scroll to the first line of a block and highlight it. */
  point(block: HTMLElement): void {
    this.box.querySelector(".is-found")?.classList.remove("is-found");
    const line = (block.firstElementChild ?? this.open) as HTMLElement;
    line.classList.add("is-found");
    this.box.scrollTop += line.getBoundingClientRect().top - this.box.getBoundingClientRect().top - this.box.clientHeight / 3;
  }

  clear(): void {
    this.open.replaceChildren();
    this.open.classList.remove("is-found");
    this.box.replaceChildren(this.open);
  }

  private mark(line: HTMLElement): void {
    for (const mark of line.querySelectorAll("mark")) mark.replaceWith(...mark.childNodes);
    line.normalize();
    if (this.expression !== null) highlight(line, this.expression);
  }
}

function render(line: LogLine): HTMLElement[] {
  return line.map((piece) => {
    const span = h("span", piece.classes === "" ? {} : { class: piece.classes }, piece.text);
    if (piece.colour !== undefined) span.style.color = piece.colour;
    if (piece.background !== undefined) span.style.backgroundColor = piece.background;
    return span;
  });
}

/** Return a case-insensitive pattern, or null for "". */
export function pattern(text: string): RegExp | null {
  return text === "" ? null : new RegExp(text.replace(/[$()*+.?[\\\]^{|}]/g, "\\$&"), "gi");
}

/** Mark matches within one text node; a match across two colours stays unmarked. */
export function highlight(line: HTMLElement, expression: RegExp): void {
  const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  const texts: Text[] = [];
  while (walker.nextNode()) texts.push(walker.currentNode as Text);
  for (const text of texts) {
    // Last match first, so that other positions stay valid.
    for (const { index, 0: words } of [...text.data.matchAll(expression)].reverse()) {
      const matchText = text.splitText(index);
      matchText.splitText(words.length);
      const mark = h("mark");
      matchText.replaceWith(mark);
      mark.append(matchText);
    }
  }
}

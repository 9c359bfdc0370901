// The lines of a log as elements, in blocks that come and go as a whole, with what is searched for marked in them.
import { h } from "../../../ui/dom";
import type { LogLine } from "./lines";

/** What an element costs besides its text: a page of empty lines must end, too. */
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

  /** What is in sight stays where it is. */
  blockAbove(lines: readonly LogLine[]): { block: HTMLElement; size: number } {
    const distanceToEnd = this.box.scrollHeight - this.box.scrollTop;
    const block = h("div");
    const size = this.fill(block, lines);
    this.box.prepend(block);
    this.box.scrollTop = this.box.scrollHeight - distanceToEnd;
    return { block, size };
  }

  /** Adds lines to a block; by how many characters it has grown. */
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

  /** The line that has not ended yet, below all others. */
  showOpen(line: LogLine): void {
    this.open.replaceChildren(...render(line));
    this.mark(this.open);
  }

  get isEmpty(): boolean {
    return (this.box.textContent ?? "") === "";
  }

  /** Marks the text wherever it is; the empty text nowhere. */
  search(text: string): void {
    this.expression = pattern(text);
    for (const line of this.box.querySelectorAll<HTMLElement>(".line")) this.mark(line);
  }

  /** Brings a block's first line into sight and says that it is the one. */
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

/** Finds the text in whatever letters, small or large; null: there is none to find. */
export function pattern(text: string): RegExp | null {
  return text === "" ? null : new RegExp(text.replace(/[$()*+.?[\\\]^{|}]/g, "\\$&"), "gi");
}

/** Marks what is found within one piece of text; a find across two colours shows its line unmarked. */
export function highlight(line: HTMLElement, expression: RegExp): void {
  const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  const texts: Text[] = [];
  while (walker.nextNode()) texts.push(walker.currentNode as Text);
  for (const text of texts) {
    // The last first: the places of the others stay as they are.
    for (const { index, 0: words } of [...text.data.matchAll(expression)].reverse()) {
      const matchText = text.splitText(index);
      matchText.splitText(words.length);
      const mark = h("mark");
      matchText.replaceWith(mark);
      mark.append(matchText);
    }
  }
}

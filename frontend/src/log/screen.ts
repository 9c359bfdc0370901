// The lines of a log on the page: appended, prepended, searched, and never more than the page can hold.
import { h } from "../dom";
import type { LogLine } from "./lines";

/** About two bytes a character: what is kept in the page. */
export const MOST_CHARACTERS = 1_000_000;

export class Screen {
  private characters = 0;
  private readonly open = h("div", { class: "line" });
  private needle = "";
  hits = 0;
  /** Whether lines at the top were let go: then what was read before them cannot be joined to them any more. */
  isTrimmed = false;

  constructor(private readonly box: HTMLElement) {
    box.replaceChildren(this.open);
  }

  append(lines: readonly LogLine[], open: LogLine): void {
    const fresh = document.createDocumentFragment();
    for (const line of lines) fresh.append(this.make(line));
    this.open.replaceChildren(...render(open));
    this.box.insertBefore(fresh, this.open);
    this.trim();
  }

  prepend(lines: readonly LogLine[]): void {
    const before = this.box.scrollHeight - this.box.scrollTop;
    const fresh = document.createDocumentFragment();
    for (const line of lines) fresh.append(this.make(line));
    this.box.prepend(fresh);
    this.box.scrollTop = this.box.scrollHeight - before;
  }

  /** How many characters are shown. */
  get size(): number {
    return this.characters;
  }

  get hasRoom(): boolean {
    return this.characters < MOST_CHARACTERS;
  }

  get isEmpty(): boolean {
    return this.box.childElementCount === 1 && this.open.textContent === "";
  }

  /** Shows only lines with the text, marked; the empty text shows all. */
  search(text: string): void {
    this.needle = text.toLowerCase();
    this.hits = 0;
    for (const line of this.box.children) if (line !== this.open) this.match(line as HTMLElement);
  }

  clear(): void {
    this.characters = 0;
    this.hits = 0;
    this.isTrimmed = false;
    this.open.replaceChildren();
    this.box.replaceChildren(this.open);
  }

  private make(line: LogLine): HTMLElement {
    const element = h("div", { class: "line" }, ...render(line));
    if (line.length === 0) element.append("\n");
    this.characters += size(element);
    if (this.needle !== "") this.match(element);
    return element;
  }

  private match(line: HTMLElement): void {
    for (const mark of line.querySelectorAll("mark")) mark.replaceWith(...mark.childNodes);
    line.normalize();
    const isHit = this.needle === "" || (line.textContent ?? "").toLowerCase().includes(this.needle);
    line.hidden = !isHit;
    if (this.needle === "" || !isHit) return;
    this.hits += 1;
    highlight(line, this.needle);
  }

  private trim(): void {
    while (this.characters > MOST_CHARACTERS) {
      const first = this.box.firstElementChild;
      if (first === null || first === this.open) return;
      this.characters -= size(first);
      if (this.needle !== "" && !(first as HTMLElement).hidden) this.hits -= 1;
      first.remove();
      this.isTrimmed = true;
    }
  }
}

const size = (line: Element): number => (line.textContent ?? "").length + 1;

function render(line: LogLine): HTMLElement[] {
  return line.map((piece) => {
    const span = h("span", piece.classes === "" ? {} : { class: piece.classes }, piece.text);
    if (piece.colour !== undefined) span.style.color = piece.colour;
    if (piece.background !== undefined) span.style.backgroundColor = piece.background;
    return span;
  });
}

/** Marks what is found within one piece of text; a find across two colours shows its line unmarked. */
function highlight(line: HTMLElement, needle: string): void {
  const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  const texts: Text[] = [];
  while (walker.nextNode()) texts.push(walker.currentNode as Text);
  for (const text of texts) {
    let rest = text;
    for (;;) {
      const at = rest.data.toLowerCase().indexOf(needle);
      if (at < 0 || at + needle.length > rest.data.length) break;
      const found = rest.splitText(at);
      rest = found.splitText(needle.length);
      const mark = h("mark");
      found.replaceWith(mark);
      mark.append(found);
    }
  }
}

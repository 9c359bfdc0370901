// The matches of a search as a list of links into the log.
import { h } from "../../../ui/dom";
import { Ansi } from "./ansi";
import { highlight, pattern } from "./screen";
import type { Hit } from "./search";

export class Hits {
  readonly element = h("ol", { class: "log-hits", "aria-label": "Matches", hidden: true });
  private listed: Hit[] = [];
  private at = -1;

  constructor(private readonly chosen: (hit: Hit) => void) {}

  /** Add new matches; call `clear` before another search. */
  show(hits: Iterable<Hit>, needle: string): void {
    const all = [...hits];
    const added = all.slice(this.listed.length);
    this.element.append(...added.map((hit, at) => this.row(hit, this.listed.length + at, needle)));
    this.listed = all;
    this.element.hidden = all.length === 0;
  }

  clear(): void {
    this.listed = [];
    this.at = -1;
    this.element.replaceChildren();
    this.element.hidden = true;
  }

  /** Go to the next or previous match, wrapping around. */
  step(by: 1 | -1): void {
    const count = this.listed.length;
    if (count > 0) this.choose(this.at < 0 && by < 0 ? count - 1 : (this.at + by + count) % count);
  }

  private choose(at: number): void {
    const hit = this.listed[at];
    if (hit === undefined) return;
    this.element.querySelector("[aria-current]")?.removeAttribute("aria-current");
    const button = this.element.children[at]?.querySelector("button");
    button?.setAttribute("aria-current", "true");
    button?.scrollIntoView?.({ block: "nearest" });
    this.at = at;
    this.chosen(hit);
  }

  private row(hit: Hit, at: number, needle: string): HTMLElement {
    const plain = new Ansi().feed(hit.text).map((piece) => piece.text).join("");
    const words = h("span", {}, plain);
    const expression = pattern(needle);
    if (expression !== null) highlight(words, expression);
    const button = h("button", { type: "button", class: "mono" }, h("span", { class: "num muted" }, `${hit.line}`), words);
    button.addEventListener("click", () => this.choose(at));
    return h("li", {}, button);
  }
}

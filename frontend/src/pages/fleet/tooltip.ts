// The tooltip of the page, kept on the screen.
import { h, refill } from "../../ui/dom";

export class Tooltip {
  private readonly box = h("div", { class: "tooltip", role: "status", hidden: true });

  show(lines: readonly string[], x: number, y: number, beside: number): void {
    if (!this.box.isConnected) document.body.append(this.box);
    refill(this.box, ...lines.map((line, at) => h("div", at === 0 ? { class: "tooltip-title" } : {}, line)));
    this.box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const right = x + beside + 8;
    const left = right + width > innerWidth - 8 ? x - width - 8 : right;
    const top = Math.min(Math.max(8, y), innerHeight - height - 8);
    this.box.style.left = `${Math.max(8, left)}px`;
    this.box.style.top = `${top}px`;
  }

  hide(): void {
    this.box.hidden = true;
  }

  close(): void {
    this.box.remove();
  }
}

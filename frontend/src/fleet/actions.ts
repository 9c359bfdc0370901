// What may be done to the chosen GPU, its jobs and its node, as the server draws it for this person; asked for in place.
import { h } from "../dom";
import { morphChildren } from "../morph";
import { toast } from "../undo";
import type { FleetCell } from "./model";

/** Until what was asked for is so, and between two looks. */
const PAUSE_MS = 1000;

export class PanelActions {
  readonly element = h("div", { class: "panel-actions" });
  private shown = "";
  private seen = "";
  private isBusy = false;
  private isOwed = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    this.element.addEventListener("submit", (event) => {
      if (!(event.target instanceof HTMLFormElement)) return;
      event.preventDefault();
      // Those who answer forms of whole pages need not look at it.
      event.stopPropagation();
      void this.send(event.target, event.submitter);
    });
  }

  /** To be called with what is chosen whenever anything was heard; asks the server only when it can have changed. */
  show(cell: FleetCell | undefined): void {
    const address = cell === undefined ? "" : `/nodes/${encodeURIComponent(cell.node.name)}/gpus/${cell.device.id}/actions/`;
    const seen = cell === undefined ? "" : JSON.stringify([cell.node.state, cell.node.intent, cell.node.intent_note, cell.node.jobs, cell.device.health, cell.device.jobs]);
    if (address === this.shown && seen === this.seen) return;
    if (address !== this.shown) this.element.replaceChildren();
    [this.shown, this.seen] = [address, seen];
    void this.look();
  }

  close(): void {
    this.shown = "";
    clearTimeout(this.timer);
  }

  private async look(): Promise<void> {
    clearTimeout(this.timer);
    this.isOwed = this.isBusy;
    if (this.isBusy || this.shown === "") return;
    this.isBusy = true;
    const address = this.shown;
    try {
      const answer = await fetch(address, { redirect: "error" });
      if (answer.ok && address === this.shown) this.take(await answer.text());
      else if (answer.status === 404 && address === this.shown) this.element.replaceChildren();
    } catch {
      // The freshness chip says that the server is away; with the next news it is asked again.
    }
    this.isBusy = false;
    const isAwaited = this.element.querySelector("[data-awaited]") !== null;
    if (this.isOwed || address !== this.shown) void this.look();
    else if (isAwaited && this.element.isConnected) this.timer = setTimeout(() => void this.look(), PAUSE_MS);
  }

  private take(html: string): void {
    const row = this.element.contains(document.activeElement) ? (document.activeElement?.closest(".do-row")?.id ?? "") : "";
    morphChildren(this.element, new DOMParser().parseFromString(html, "text/html").body);
    // Who has just pressed a button that is there no more goes on with the one in its place.
    if (row !== "" && !this.element.contains(document.activeElement)) this.element.querySelector<HTMLElement>(`#${row} :is(summary, button)`)?.focus();
  }

  private async send(form: HTMLFormElement, pressed: HTMLElement | null): Promise<void> {
    const button = pressed instanceof HTMLButtonElement ? pressed : form.querySelector("button");
    const words = button?.textContent ?? "";
    let isDone = false;
    const body = new URLSearchParams([...new FormData(form)].map(([name, value]) => [name, String(value)]));
    if (button !== null) [button.disabled, button.textContent] = [true, "requested…"];
    try {
      const answer = await fetch(form.action, { method: "POST", body, redirect: "error", headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(answer.status === 404 ? "it is not there any more" : `the server answered ${answer.status}`);
      const { is_done, sentence } = (await answer.json()) as { is_done: boolean; sentence: string };
      isDone = is_done;
      toast(sentence);
      form.closest<HTMLDetailsElement>("details.confirm")?.removeAttribute("open");
    } catch (error) {
      // What fetch itself says of a server that is away differs from browser to browser.
      const why = error instanceof TypeError ? "the server gave no answer" : error instanceof Error ? error.message : "no answer";
      toast(`Nothing is known of what was asked: ${why}. Look at it, and try again.`);
    }
    // What was done is shown by the next look, with the button that fits then; until then it is not pressed twice.
    if (button !== null && !isDone) [button.disabled, button.textContent] = [false, words];
    void this.look();
  }
}

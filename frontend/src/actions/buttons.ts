// What may be done to something, and how what was asked for stands, as the server draws it for this person: drawn anew
// when it can have changed, and each second while something that was asked for is not confirmed yet.
import { whenVisible } from "../live/visibility";
import { h } from "../ui/dom";
import type { Hub } from "../live/hub";
import { morphChildren } from "../ui/morph";
import type { JobDetail } from "../live/topics";

/** Between two looks while something is awaited. */
const PAUSE_MS = 1000;

export class Actions {
  private address = "";
  private dependsOn = "";
  private isBusy = false;
  private isStale = false;
  private stopWaiting = (): void => undefined;
  private readonly onRequested = (): void => void this.load();

  constructor(readonly element: HTMLElement = h("div", { class: "panel-actions" })) {
    document.addEventListener("asked", this.onRequested);
  }

  /** `address`: of the piece of HTML; "" for none. To be called whenever anything was heard: the server is asked only if
   *  the address or `seen`, what it depends on, is another. */
  show(address: string, dependsOn: string): void {
    if (address === this.address && dependsOn === this.dependsOn) return;
    if (address !== this.address && this.address !== "") this.element.replaceChildren();
    [this.address, this.dependsOn] = [address, dependsOn];
    void this.load();
  }

  close(): void {
    this.address = "";
    this.stopWaiting();
    document.removeEventListener("asked", this.onRequested);
  }

  private async load(): Promise<void> {
    this.stopWaiting();
    this.isStale = this.isBusy;
    if (this.isBusy || this.address === "") return;
    this.isBusy = true;
    const address = this.address;
    try {
      const answer = await fetch(address, { redirect: "error" });
      if (answer.ok && address === this.address) this.apply(await answer.text());
      else if (answer.status === 404 && address === this.address) this.element.replaceChildren();
    } catch {
      // The freshness chip says that the server is away; with the next news it is asked again.
    }
    this.isBusy = false;
    const isAwaited = this.element.querySelector("[data-awaited]") !== null;
    if (this.isStale || address !== this.address) void this.load();
    else if (isAwaited && this.element.isConnected) this.stopWaiting = whenVisible(() => void this.load(), PAUSE_MS);
  }

  private apply(html: string): void {
    const focused = this.element.contains(document.activeElement) ? document.activeElement : null;
    const row = focused?.closest(".do-row")?.id;
    morphChildren(this.element, new DOMParser().parseFromString(html, "text/html").body);
    // What has come new may be more than a link.
    this.element.dispatchEvent(new CustomEvent("redrawn", { bubbles: true }));
    // Who has just pressed a button that is there no more goes on with the one in its place.
    const place = row ? this.element.querySelector(`#${row}`) : this.element;
    if (focused !== null && !this.element.contains(document.activeElement)) place?.querySelector<HTMLElement>(":is(summary, button)")?.focus();
  }
}

/** The buttons of the page's job: `<div data-actions="/jobs/7/actions/">` beside a region of its topic. Dispatches
 *  `job-changed` on the body when its state changes: what fits it then is another thing. */
export function startJobActions(hub: Hub): void {
  const region = document.querySelector<HTMLElement>('[data-live^="job:"][data-state]');
  const box = document.querySelector<HTMLElement>("[data-actions]");
  const topic = region?.dataset.live;
  if (region === null || box === null || topic === undefined) return;
  const actions = new Actions(box);
  // It may have changed between the server's look and the first message.
  let lastState = region.dataset.state;
  hub.listen(topic, (state) => {
    const job = state.rows.get("job") as JobDetail | undefined;
    if (job === undefined) return;
    actions.show(box.dataset.actions ?? "", JSON.stringify([job.state, job.attempt, job.max_runtime_minutes, job.reason]));
    if (lastState !== job.state) document.body.dispatchEvent(new CustomEvent("job-changed"));
    lastState = job.state;
  });
}

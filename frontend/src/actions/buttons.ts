// Actions on an object and the status of the latest request, rendered by the server: reloaded
// when they can have changed, and every second while a request is not confirmed.
import { whenVisible } from "../live/visibility";
import { h } from "../ui/dom";
import { request } from "../ui/fetch_errors";
import type { Hub } from "../live/hub";
import { morphChildren } from "../ui/morph";
import type { JobDetail } from "../live/topics";

/** The poll interval while a request is not confirmed. */
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

  /** Load the fragment at `address` ("": none), but only if the address or `dependsOn` has
   *  changed. Call this on every update. */
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
      const answer = await request(address);
      if (answer.ok && address === this.address) this.apply(await answer.text());
      else if (answer.status === 404 && address === this.address) this.element.replaceChildren();
    } catch {
      // The freshness chip shows the outage; the next update loads again.
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
    // New elements can have HTMX attributes.
    this.element.dispatchEvent(new CustomEvent("redrawn", { bubbles: true }));
    // If the pressed button is gone, focus the one in its place.
    const place = row ? this.element.querySelector(`#${row}`) : this.element;
    if (focused !== null && !this.element.contains(document.activeElement)) place?.querySelector<HTMLElement>(":is(summary, button)")?.focus();
  }
}

/** The actions of the job page: `<div data-actions="/jobs/7/actions/">` beside the head of the job. Dispatches
 *  `job-changed` on the body when the state changes. */
export function startJobActions(hub: Hub): void {
  const region = document.querySelector<HTMLElement>('[data-view="job-head"]');
  const box = document.querySelector<HTMLElement>("[data-actions]");
  const topic = region?.dataset.live;
  if (region === null || box === null || topic === undefined) return;
  const actions = new Actions(box);
  let lastState: string | undefined;
  hub.listen(topic, (state) => {
    const job = state.rows.get("job") as JobDetail | undefined;
    if (job === undefined) return;
    actions.show(box.dataset.actions ?? "", JSON.stringify([job.state, job.attempt, job.max_runtime_minutes, job.reason]));
    if (lastState !== undefined && lastState !== job.state) document.body.dispatchEvent(new CustomEvent("job-changed"));
    lastState = job.state;
  });
}

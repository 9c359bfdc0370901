// Mount a view on each live region of the page, and close those of removed regions.
import { h } from "../ui/dom";
import type { Hub } from "./hub";
import type { TopicState } from "./store";

export interface View {
  /** Called at most once per frame, when the topic has changed. */
  draw(state: TopicState): void;
  close?(): void;
  /** The theme or the size of the page changed. */
  restyle?(): void;
}

export interface Page {
  hub: Hub;
}

export type MakeView = (region: HTMLElement, page: Page) => View;

const ERRORS: Record<string, string> = {
  not_found: "This no longer exists, or you can no longer see it. Its last known state is below.",
  unknown_topic: "The server does not know this part of the page. Reload the page.",
  too_many_topics: "This page follows more topics than the server allows. Reload the page.",
};

export class Regions {
  private readonly open = new Map<HTMLElement, { view: View; end: () => void }>();

  constructor(
    private readonly page: Page,
    private readonly views: Readonly<Record<string, MakeView>>,
    private readonly drawn: () => void,
  ) {}

  /** Call this at the start and after each HTMX change. */
  scan(): void {
    for (const [region, { view, end }] of this.open) {
      if (region.isConnected) continue;
      end();
      view.close?.();
      this.open.delete(region);
    }
    for (const region of document.querySelectorAll<HTMLElement>("[data-live][data-view]")) {
      if (!this.open.has(region)) this.mount(region);
    }
  }

  restyle(): void {
    for (const { view } of this.open.values()) view.restyle?.();
  }

  private mount(region: HTMLElement): void {
    const make = this.views[region.dataset.view ?? ""];
    const topic = region.dataset.live;
    if (make === undefined || topic === undefined || topic === "") return;
    const view = make(region, this.page);
    let isFirst = true;
    const end = this.page.hub.listen(topic, (state) => {
      if (state.status === "error") {
        isFirst = true;
        showError(region, state.error ?? "");
        return;
      }
      if (!state.hasRows) return;
      region.querySelector(":scope > .live-error")?.remove();
      region.classList.remove("is-past");
      view.draw(state);
      if (isFirst) {
        isFirst = false;
        region.classList.add("is-on");
        region.removeAttribute("aria-busy");
        reveal(region);
      }
      this.drawn();
    });
    this.open.set(region, { view, end });
  }
}

function showError(region: HTMLElement, code: string): void {
  region.querySelector(":scope > .live-error")?.remove();
  region.classList.add("is-past");
  region.prepend(h("p", { class: "empty live-error", role: "alert" }, ERRORS[code] ?? `The server rejected this (${code}).`));
}

/** The URL can name a row (#gpu-1) that did not exist when the page loaded. */
function reveal(region: HTMLElement): void {
  let name = location.hash.slice(1);
  try {
    name = decodeURIComponent(name);
  } catch {
    return;
  }
  const target = name === "" ? null : document.getElementById(name);
  if (target === null || !region.contains(target)) return;
  target.classList.add("is-target");
  target.scrollIntoView({ block: "center" });
}

// The views of the Endpoints pages. Their code is loaded with the first of them, so that other pages do not pay for it.
import type { MakeView, View } from "../../live/regions";
import type { TopicState } from "../../live/store";

type Name = "list" | "head" | "batches" | "replicas" | "costs";

function lazily(name: Name): MakeView {
  return (region, page) => {
    let view: View | null = null;
    let latest: TopicState | null = null;
    let isOver = false;
    const start = async (): Promise<void> => {
      try {
        const views: Record<Name, MakeView> = await import("./endpoints");
        if (isOver) return;
        view = views[name](region, page);
        if (latest !== null) view.draw(latest);
      } catch {
        region.textContent = "This part of the page could not be loaded. Reload the page.";
      }
    };
    void start();
    return {
      draw(state) {
        latest = state;
        view?.draw(state);
      },
      close() {
        isOver = true;
        view?.close?.();
      },
    };
  };
}

export const list = lazily("list");
export const head = lazily("head");
export const batches = lazily("batches");
export const replicas = lazily("replicas");
export const costs = lazily("costs");

// When the first jobs of the queue will probably start: asked of REST now and then, as it takes a plan to answer.
import type { Estimate } from "./row";

const AGAIN_MS = 20_000;

export class Estimates {
  private known = new Map<number, Estimate>();
  private readonly timer: number;
  private isOver = false;

  constructor(
    private readonly changed: () => void,
    private readonly get: (url: string) => Promise<Response> = (url) => fetch(url, { credentials: "same-origin" }),
  ) {
    this.timer = window.setInterval(() => void this.ask(), AGAIN_MS);
    void this.ask();
  }

  of(id: number): Estimate | undefined {
    return this.known.get(id);
  }

  close(): void {
    this.isOver = true;
    clearInterval(this.timer);
  }

  private async ask(): Promise<void> {
    if (document.hidden) return;
    try {
      const response = await this.get("/api/v1/queue?limit=20");
      if (!response.ok) return;
      const { items } = (await response.json()) as { items: { job_id: number; estimate: Estimate | null }[] };
      const before = this.known;
      this.known = new Map(items.flatMap(({ job_id: id, estimate }) => (estimate === null ? [] : [[id, same(before.get(id), estimate)] as const])));
      if (!this.isOver) this.changed();
    } catch {
      // Without estimates the queue is as good as it was; the page's chip says when the server is not there.
    }
  }
}

/** The one that was known where it says the same: then nothing is drawn anew for it. */
function same(before: Estimate | undefined, now: Estimate): Estimate {
  return before?.sentence === now.sentence ? before : now;
}

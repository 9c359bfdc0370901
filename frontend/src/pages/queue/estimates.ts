// When the jobs in sight will probably start: asked of the server now and then, as it takes a plan to answer.
import { onceShown } from "../../live/visibility";
import type { Foreseen } from "./row";

const AGAIN_MS = 20_000;
const SOON_MS = 300;
/** The server answers no more at once. */
const MOST = 500;

export class Estimates {
  private known = new Map<number, Foreseen>();
  private wanted: readonly number[] = [];
  private asked = new Set<number>();
  private stopWaiting = (): void => undefined;
  private soon = 0;
  private isOver = false;

  constructor(
    private readonly changed: () => void,
    private readonly get: (url: string) => Promise<Response> = (url) => fetch(url, { credentials: "same-origin" }),
  ) {
    this.again();
  }

  of(id: number): Foreseen | undefined {
    return this.known.get(id);
  }

  /** These are in sight now; of those that are new the server is asked soon. */
  want(ids: readonly number[]): void {
    this.wanted = ids.slice(0, MOST);
    if (this.soon !== 0 || this.isOver || this.wanted.every((id) => this.asked.has(id))) return;
    this.soon = window.setTimeout(() => {
      this.soon = 0;
      void this.ask();
    }, SOON_MS);
  }

  close(): void {
    this.isOver = true;
    this.stopWaiting();
    clearTimeout(this.soon);
  }

  private again(): void {
    this.stopWaiting = onceShown(() => {
      void this.ask();
      this.again();
    }, AGAIN_MS);
  }

  private async ask(): Promise<void> {
    if (document.hidden || this.wanted.length === 0) return;
    const ids = this.wanted;
    this.asked = new Set(ids);
    try {
      const response = await this.get(`/queue/estimates/?ids=${ids.join()}`);
      if (!response.ok) return;
      const found = Object.entries((await response.json()) as Record<string, Foreseen>);
      const before = this.known;
      this.known = new Map(found.map(([id, foreseen]) => [Number(id), same(before.get(Number(id)), foreseen)]));
      if (!this.isOver) this.changed();
    } catch {
      // Without estimates the queue is as good as it was; the page's chip says when the server is not there.
    }
  }
}

/** The one that was known where it says the same: then nothing is drawn anew for it. */
function same(before: Foreseen | undefined, now: Foreseen): Foreseen {
  return before?.estimate?.sentence === now.estimate?.sentence && before?.estimate_reason === now.estimate_reason ? before : now;
}

// Estimated starts of the visible jobs, polled rarely as each answer needs a plan.
import { whenVisible } from "../../live/visibility";
import { request } from "../../ui/fetch_errors";
import type { EstimateResult } from "./row";

const AGAIN_MS = 20_000;
const SOON_MS = 300;
/** The server's limit per request. */
const MOST = 500;

export class Estimates {
  private byJob = new Map<number, EstimateResult>();
  private ids: readonly number[] = [];
  private requested = new Set<number>();
  private requests = 0;
  /** The number of the latest request whose answer is shown. */
  private shown = 0;
  private stopWaiting = (): void => undefined;
  private soon = 0;
  private isOver = false;

  constructor(
    private readonly changed: () => void,
    private readonly get: (url: string) => Promise<Response> = request,
  ) {
    this.repeat();
  }

  of(id: number): EstimateResult | undefined {
    return this.byJob.get(id);
  }

  /** Set the visible jobs; new ones are requested soon. */
  want(ids: readonly number[]): void {
    this.ids = ids.slice(0, MOST);
    if (this.soon !== 0 || this.isOver || this.ids.every((id) => this.requested.has(id))) return;
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

  private repeat(): void {
    this.stopWaiting = whenVisible(() => {
      void this.ask();
      this.repeat();
    }, AGAIN_MS);
  }

  private async ask(): Promise<void> {
    if (document.hidden || this.ids.length === 0) return;
    const ids = this.ids;
    this.requested = new Set(ids);
    const request = (this.requests += 1);
    try {
      const response = await this.get(`/queue/estimates/?ids=${ids.join()}`);
      if (!response.ok) return;
      const entries = Object.entries((await response.json()) as Record<string, EstimateResult>);
      // Answers can overtake each other.
      if (request < this.shown) return;
      this.shown = request;
      const previous = this.byJob;
      this.byJob = new Map(entries.map(([id, foreseen]) => [Number(id), keepEqual(previous.get(Number(id)), foreseen)]));
      if (!this.isOver) this.changed();
    } catch {
      // The queue works without estimates; the freshness chip shows an outage.
    }
  }
}

/** Keep the previous object if equal, to avoid a redraw. */
function keepEqual(previous: EstimateResult | undefined, current: EstimateResult): EstimateResult {
  return previous?.estimate?.sentence === current.estimate?.sentence && previous?.estimate_reason === current.estimate_reason ? previous : current;
}

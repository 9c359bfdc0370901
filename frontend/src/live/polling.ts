// Poll the same rows every few seconds if a proxy blocks the WebSocket.
import type { Hub } from "./hub";
import type { Rows } from "./topics";

/** The rows of several topics at one moment, polled or carried by the page. */
export interface Snapshot {
  alive: string;
  cycle_age_seconds: number | null;
  topics: Record<string, Rows>;
  errors: Record<string, string>;
}

export const POLL_MS = 5000;
/** A poll without an answer ends after this time, so that the next one can begin. */
const ANSWER_MS = 10_000;
/** Longer than a restart of the server. */
export const TIMEOUT_MS = 8000;

export class Polling {
  private without: number | null = null;
  private askedAt = -Infinity;
  private isBusy = false;

  constructor(
    private readonly hub: Hub,
    private readonly now: () => number = Date.now,
  ) {}

  /** Call this once a second. */
  async tick(): Promise<void> {
    if (this.hub.heard.isConnected || this.hub.heard.isLoggedOut) {
      this.without = null;
      return;
    }
    this.without ??= this.now();
    const topics = this.hub.subscribed();
    const isDue = this.now() - this.without >= TIMEOUT_MS && this.now() - this.askedAt >= POLL_MS;
    if (!isDue || this.isBusy || topics.length === 0) return;
    this.askedAt = this.now();
    this.isBusy = true;
    try {
      await this.ask(topics);
    } catch {
      // The page shows that it is offline.
    } finally {
      this.isBusy = false;
    }
  }

  private async ask(topics: readonly string[]): Promise<void> {
    const query = new URLSearchParams(topics.map((topic) => ["topic", topic]));
    const answer = await fetch(`/live/?${query.toString()}`, { headers: { Accept: "application/json" }, redirect: "manual", signal: AbortSignal.timeout(ANSWER_MS) });
    // A redirect leads to the login. A status of 401 would also be an error on the console.
    if (answer.type === "opaqueredirect") return this.hub.loggedOut();
    if (answer.ok) this.hub.polled((await answer.json()) as Snapshot);
  }
}

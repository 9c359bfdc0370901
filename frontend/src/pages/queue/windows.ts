// The subscribed windows of the queue feed.
import type { Hub } from "../../live/hub";
import type { TopicState } from "../../live/store";
import { QUEUE_WINDOW } from "../../ui/constants";
import type { QueueRow, QueueTotal } from "../../live/topics";

export const WINDOW = QUEUE_WINDOW;
/** Below the server's limit of topics per page. */
const MAX_WINDOWS = 6;

export interface Window {
  order: readonly number[];
  rows: ReadonlyMap<string, QueueRow>;
}

export class Windows {
  readonly byNumber = new Map<number, Window>();
  total: QueueTotal | null = null;
  error: string | null = null;
  private readonly ends = new Map<number, () => void>();

  /** `query` as in a URL, without the question mark. */
  constructor(
    private readonly hub: Pick<Hub, "listen">,
    private readonly query: string,
    private readonly changed: () => void,
  ) {}

  /** Subscribe to the windows of jobs from `first` to before `last`. */
  want(first: number, last: number): void {
    const from = Math.floor(Math.max(0, first) / WINDOW);
    const until = Math.min(Math.floor(Math.max(first, last - 1) / WINDOW), from + MAX_WINDOWS - 1);
    for (let number = from; number <= until; number += 1) this.open(number);
    for (const [number, end] of this.ends) {
      // Keep neighbours for scrolling back and forth.
      if (number >= from - 1 && number <= until + 1) continue;
      end();
      this.ends.delete(number);
      this.byNumber.delete(number);
    }
  }

  close(): void {
    for (const end of this.ends.values()) end();
    this.ends.clear();
  }

  private open(number: number): void {
    if (this.ends.has(number)) return;
    const topic = `queue:${number * WINDOW}-${(number + 1) * WINDOW}${this.query === "" ? "" : `?${this.query}`}`;
    this.ends.set(number, this.hub.listen(topic, (state) => this.update(number, state)));
  }

  private update(number: number, state: TopicState): void {
    this.error = state.status === "error" ? state.error : null;
    const total = state.rows.get("total") as QueueTotal | undefined;
    if (total !== undefined) {
      this.total = total;
      this.byNumber.set(number, { order: total.order, rows: state.rows as ReadonlyMap<string, QueueRow> });
    }
    this.changed();
  }
}

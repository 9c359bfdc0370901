// What the server finds in one rank's log: asked for until there is enough of it, or all; knows nothing of the page.
import { unexpected, whyFailed } from "../../../ui/fetch_errors";
import type { Fetch, Stream } from "./tail";

export interface Hit {
  line: number;
  /** The byte where the find begins. */
  offset: number;
  text: string;
}

interface Answer {
  hits: [number, number, string][];
  next_offset: number;
  next_line: number;
  size: number;
  is_all: boolean;
}

/** So many more finds at a time. */
const SHARE = 200;
/** A log that grows is gone on with so much later. */
const AGAIN_MS = 2000;

export class Search {
  /** By line: a line that had not ended when it was looked at is looked at again. */
  readonly hits = new Map<number, Hit>();
  looked = 0;
  size = 0;
  isAll = false;
  isBusy = false;
  problem = "";
  private line = 0;
  private limit = SHARE;
  private isOver = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly stream: Stream,
    readonly text: string,
    private readonly changed: () => void,
    private readonly get: Fetch = (url) => fetch(url, { credentials: "same-origin", redirect: "error" }),
  ) {}

  /** Goes on until there are enough finds or no more of the log. */
  async go(): Promise<void> {
    if (this.isBusy || this.isOver) return;
    [this.isBusy, this.problem, this.isAll] = [true, "", false];
    this.changed();
    try {
      while (!this.isOver && !this.isAll && this.hits.size < this.limit) {
        await this.step();
        this.changed();
      }
    } catch (error) {
      this.problem = whyFailed(error);
    }
    this.isBusy = false;
    this.changed();
  }

  more(): Promise<void> {
    this.limit = this.hits.size + SHARE;
    return this.go();
  }

  /** The log has so many bytes by now: what is new is searched, too, a little later. */
  grown(size: number): void {
    if (!this.isAll || size <= this.size || this.timer !== undefined) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      void this.go();
    }, AGAIN_MS);
  }

  end(): void {
    this.isOver = true;
    clearTimeout(this.timer);
  }

  private async step(): Promise<void> {
    const { job, attempt, rank } = this.stream;
    const query = new URLSearchParams({ log: `${attempt}.${rank}`, q: this.text, offset: `${this.looked}`, line: `${this.line}` });
    const response = await this.get(`/jobs/${job}/log-hits/?${query}`);
    if (!response.ok) throw unexpected(response);
    const answer = (await response.json()) as Answer;
    if (this.isOver) return;
    for (const [line, offset, text] of answer.hits) if (!this.hits.has(line)) this.hits.set(line, { line, offset, text });
    // A server that gets nowhere must not be asked in a circle.
    this.isAll = answer.is_all || answer.next_offset <= this.looked;
    [this.looked, this.line, this.size] = [answer.next_offset, answer.next_line, answer.size];
  }
}

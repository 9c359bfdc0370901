// Search a rank's log on the server until enough matches are found. Independent of the page.
import { request, unexpected, whyFailed } from "../../../ui/fetch_errors";
import type { Fetch, Stream } from "./tail";

export interface Hit {
  line: number;
  /** The byte offset of the match. */
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

/** Matches per request for more. */
const SHARE = 200;
/** The delay before the search of a growing log continues. */
const AGAIN_MS = 2000;

export class Search {
  /** By line, as an incomplete line is searched again. */
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
    private readonly get: Fetch = (url) => request(url),
  ) {}

  /** Search until there are enough matches or the log ends. */
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

  /** Search the new part of a grown log after a delay. */
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
    // Stop if the server makes no progress.
    this.isAll = answer.is_all || answer.next_offset <= this.looked;
    [this.looked, this.line, this.size] = [answer.next_offset, answer.next_line, answer.size];
  }
}

// Reads one rank's log over REST, piece by piece, in order, one request at a time; knows nothing of the page.

export interface Stream {
  job: number;
  attempt: number;
  rank: number;
}

export interface LogPart {
  bytes: Uint8Array;
  offset: number;
  next: number;
  size: number;
  isComplete: boolean;
}

export type Fetch = (url: string) => Promise<Response>;

export const TAIL_BYTES = 65536;
const MOST_BYTES = 262144;

export function logUrl(stream: Stream, offset: number, limit: number): string {
  const asked = new URLSearchParams({ attempt: `${stream.attempt}`, rank: `${stream.rank}`, offset: `${offset}`, limit: `${limit}` });
  return `/api/v1/jobs/${stream.job}/logs?${asked}`;
}

export async function readPart(get: Fetch, stream: Stream, offset: number, limit: number): Promise<LogPart> {
  const response = await get(logUrl(stream, offset, limit));
  if (response.status === 410) throw new Gone(await detail(response));
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  const bytes = new Uint8Array(await response.arrayBuffer());
  const number = (name: string, otherwise: number): number => Number(response.headers.get(name) ?? otherwise);
  const next = number("X-Log-Next-Offset", offset + bytes.length);
  return {
    bytes,
    next,
    offset: number("X-Log-Offset", next - bytes.length),
    size: number("X-Log-Size", next),
    isComplete: response.headers.get("X-Log-Complete") === "true",
  };
}

/** The log was deleted: it does not come back. */
export class Gone extends Error {}

async function detail(response: Response): Promise<string> {
  try {
    return ((await response.json()) as { detail?: string }).detail ?? "it was deleted";
  } catch {
    return "it was deleted";
  }
}

export interface TailEvents {
  /** The first part of the tail, or the next; `isFirst` begins anew. */
  more(part: LogPart, isFirst: boolean): void;
  failed(words: string): void;
  /** There is no log any more, as the sentence says. */
  gone(words: string): void;
}

export class Tail {
  private next = 0;
  private size = -1;
  private isOpen = false;
  private isReading = false;
  private isEnded = false;
  isComplete = false;

  constructor(
    readonly stream: Stream,
    private readonly events: TailEvents,
    private readonly get: Fetch = (url) => fetch(url, { credentials: "same-origin" }),
  ) {}

  /** What the server says that there is by now; reads on where it is more than was read. */
  async grown(size: number): Promise<void> {
    this.size = Math.max(this.size, size);
    if (this.isReading || this.isEnded) return;
    this.isReading = true;
    try {
      do await this.step();
      while (!this.isEnded && this.next < this.size);
    } catch (error) {
      if (this.isEnded) return;
      if (error instanceof Gone) {
        this.isEnded = true;
        this.events.gone(error.message);
      } else this.events.failed(error instanceof Error ? error.message : "the log could not be read");
    } finally {
      this.isReading = false;
    }
  }

  /** Up to `limit` bytes before `offset`. */
  earlier(offset: number, limit: number): Promise<LogPart> {
    const from = Math.max(0, offset - limit);
    return readPart(this.get, this.stream, from, offset - from);
  }

  end(): void {
    this.isEnded = true;
  }

  private async step(): Promise<void> {
    const isFirst = !this.isOpen;
    if (!isFirst && this.next >= this.size) return;
    const part = isFirst
      ? await readPart(this.get, this.stream, -TAIL_BYTES, TAIL_BYTES)
      : await readPart(this.get, this.stream, this.next, MOST_BYTES);
    if (this.isEnded) return;
    this.isOpen = true;
    // A server that answers nothing where more was promised must not be asked in a circle.
    this.size = part.bytes.length === 0 ? part.next : Math.max(part.size, part.next);
    this.next = part.next;
    this.isComplete = part.isComplete;
    this.events.more(part, isFirst);
  }
}

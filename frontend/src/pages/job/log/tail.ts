// Reads one rank's log over REST, piece by piece, in order, one request at a time; knows nothing of the page.
import { unexpected, whyFailed } from "../../../ui/fetch_errors";

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
const MAX_BYTES = 262144;
/** Who is further behind than this is not read after, but begins anew at the end. */
export const MAX_BEHIND = 1 << 20;

export function logUrl(stream: Stream, offset: number, limit: number): string {
  const query = new URLSearchParams({ attempt: `${stream.attempt}`, rank: `${stream.rank}`, offset: `${offset}`, limit: `${limit}` });
  return `/api/v1/jobs/${stream.job}/logs?${query}`;
}

export async function readPart(get: Fetch, stream: Stream, offset: number, limit: number): Promise<LogPart> {
  const response = await get(logUrl(stream, offset, limit));
  if (response.status === 410) throw new Gone(await detail(response));
  if (!response.ok) throw unexpected(response);
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
  /** The first part of the tail, or the next; `isFirst` begins anew, so many bytes after what was read before. */
  more(part: LogPart, isFirst: boolean, skipped: number): void;
  failed(words: string): void;
  /** There is no log any more, as the sentence says. */
  showDeleted(words: string): void;
  /** Whether to go on reading by itself what is written: no one who reads elsewhere wants to lose what they read. */
  mayGoOn?(): boolean;
}

export class Tail {
  /** The byte that is read next. */
  next = 0;
  size = -1;
  isComplete = false;
  private isOpen = false;
  private isGoingOn = false;
  private isEnded = false;
  private turn: Promise<unknown> = Promise.resolve();

  constructor(
    readonly stream: Stream,
    private readonly events: TailEvents,
    private readonly get: Fetch = (url) => fetch(url, { credentials: "same-origin" }),
  ) {}

  /** What the server says that there is by now; reads on where it is more than was read. */
  async grown(size: number): Promise<void> {
    this.size = Math.max(this.size, size);
    if (this.isGoingOn || this.isEnded) return;
    this.isGoingOn = true;
    let isFine: boolean;
    do isFine = await this.inTurn(() => this.goOn());
    while (isFine && this.next < this.size && this.mayGoOn());
    this.isGoingOn = false;
  }

  /** Begins anew at the end. */
  toEnd(): Promise<boolean> {
    return this.inTurn(() => this.readTail(0));
  }

  /** The next part, though nobody follows. */
  later(): Promise<boolean> {
    return this.inTurn(() => this.readOn());
  }

  /** Up to `limit` bytes before `offset`, for `take`. */
  earlier(offset: number, limit: number, handle: (part: LogPart) => void): Promise<boolean> {
    const from = Math.max(0, offset - limit);
    return this.inTurn(async () => this.deliver(await readPart(this.get, this.stream, from, offset - from), handle));
  }

  /** `limit` bytes around `offset`, for `take`; from their end on the log is read then. */
  around(offset: number, limit: number, handle: (part: LogPart) => void): Promise<boolean> {
    return this.inTurn(async () => {
      const part = await readPart(this.get, this.stream, Math.max(0, offset - limit / 2), limit);
      this.deliver(part, (found) => {
        [this.next, this.isComplete] = [found.next, found.isComplete];
        handle(found);
      });
    });
  }

  /** What was read from here on was let go. */
  backTo(offset: number): void {
    [this.next, this.isComplete] = [offset, false];
  }

  end(): void {
    this.isEnded = true;
  }

  private mayGoOn(): boolean {
    return this.events.mayGoOn?.() ?? true;
  }

  /** One request at a time; whether it went well. */
  private inTurn(ask: () => Promise<void>): Promise<boolean> {
    const mine = this.turn.then(async () => {
      if (this.isEnded) return false;
      try {
        await ask();
        return true;
      } catch (error) {
        if (!this.isEnded) this.report(error);
        return false;
      }
    });
    this.turn = mine;
    return mine;
  }

  private report(error: unknown): void {
    if (error instanceof Gone) {
      this.isEnded = true;
      this.events.showDeleted(error.message);
    } else this.events.failed(whyFailed(error, "the log could not be read"));
  }

  private async goOn(): Promise<void> {
    if (!this.isOpen) return this.readTail(0);
    if (this.next >= this.size || !this.mayGoOn()) return;
    // After an hour in a hidden tab nobody wants to wait for hundreds of requests.
    if (this.size - this.next > MAX_BEHIND) return this.readTail(this.next);
    return this.readOn();
  }

  private async readTail(readTo: number): Promise<void> {
    const part = await readPart(this.get, this.stream, -TAIL_BYTES, TAIL_BYTES);
    this.deliver(part, () => this.advance(part, true, readTo === 0 ? 0 : part.offset - readTo));
  }

  private async readOn(): Promise<void> {
    const part = await readPart(this.get, this.stream, this.next, MAX_BYTES);
    this.deliver(part, () => this.advance(part, false, 0));
  }

  private deliver(part: LogPart, handle: (part: LogPart) => void): void {
    if (!this.isEnded) handle(part);
  }

  private advance(part: LogPart, isFirst: boolean, skipped: number): void {
    this.isOpen = true;
    // A server that answers nothing where more was promised must not be asked in a circle.
    this.size = part.bytes.length === 0 ? part.next : Math.max(part.size, part.next);
    this.next = part.next;
    this.isComplete = part.isComplete;
    this.events.more(part, isFirst, skipped);
  }
}

// Read a rank's log over REST in order, one request at a time. Independent of the page.
import { request, unexpected, whyFailed } from "../../../ui/fetch_errors";

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
/** A reader further behind than this restarts at the end. */
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

/** The log was deleted permanently. */
export class Gone extends Error {}

async function detail(response: Response): Promise<string> {
  try {
    return ((await response.json()) as { detail?: string }).detail ?? "it was deleted";
  } catch {
    return "it was deleted";
  }
}

export interface TailEvents {
  /** The first part of the tail, or the next; `isFirst` restarts, `skipped` bytes after the previous part. */
  more(part: LogPart, isFirst: boolean, skipped: number): void;
  failed(words: string): void;
  /** The log no longer exists; the argument says why. */
  showDeleted(words: string): void;
  /** Whether to read new output automatically, without moving a reader elsewhere in the log. */
  mayGoOn?(): boolean;
}

export class Tail {
  /** The next byte to read. */
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
    private readonly get: Fetch = request,
  ) {}

  /** Record the size reported by the server, and read new output. */
  async grown(size: number): Promise<void> {
    this.size = Math.max(this.size, size);
    if (this.isGoingOn || this.isEnded) return;
    this.isGoingOn = true;
    let isFine: boolean;
    do isFine = await this.inTurn(() => this.goOn());
    while (isFine && this.next < this.size && this.mayGoOn());
    this.isGoingOn = false;
  }

  /** Restart at the end. */
  toEnd(): Promise<boolean> {
    return this.inTurn(() => this.readTail(0));
  }

  /** Read the next part on request. */
  later(): Promise<boolean> {
    return this.inTurn(() => this.readOn());
  }

  /** Read up to `limit` bytes before `offset`. */
  earlier(offset: number, limit: number, handle: (part: LogPart) => void): Promise<boolean> {
    const from = Math.max(0, offset - limit);
    return this.inTurn(async () => this.deliver(await readPart(this.get, this.stream, from, offset - from), handle));
  }

  /** Read `limit` bytes around `offset`, and continue from their end. */
  around(offset: number, limit: number, handle: (part: LogPart) => void): Promise<boolean> {
    return this.inTurn(async () => {
      const part = await readPart(this.get, this.stream, Math.max(0, offset - limit / 2), limit);
      this.deliver(part, (found) => {
        [this.next, this.isComplete] = [found.next, found.isComplete];
        handle(found);
      });
    });
  }

  /** Forget what was read from `offset` on. */
  backTo(offset: number): void {
    [this.next, this.isComplete] = [offset, false];
  }

  end(): void {
    this.isEnded = true;
  }

  private mayGoOn(): boolean {
    return this.events.mayGoOn?.() ?? true;
  }

  /** Queue a request. Return whether it succeeded. */
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
    // A tab hidden for long restarts instead of sending hundreds of requests.
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
    // An empty answer ends the loop.
    this.size = part.bytes.length === 0 ? part.next : Math.max(part.size, part.next);
    this.next = part.next;
    this.isComplete = part.isComplete;
    this.events.more(part, isFirst, skipped);
  }
}

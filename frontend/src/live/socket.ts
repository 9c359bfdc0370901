// A reconnecting WebSocket: 0.3 s to 5 s between tries, with jitter.

export interface SocketLike {
  readyState: number;
  onopen: ((event: Event) => void) | null;
  onclose: ((event: CloseEvent) => void) | null;
  onmessage: ((event: MessageEvent) => void) | null;
  send(data: string): void;
  close(): void;
}

export interface SocketEvents {
  opened(): void;
  /** `code`: the close code of the server, if any. */
  closed(code: number): void;
  received(data: unknown): void;
}

const FIRST_MS = 300;
const MAX_MS = 5000;
/** A connection that takes longer to open is replaced: a browser would wait for minutes. */
export const OPEN_MS = 10_000;
const OPEN = 1;
/** Logged out: a retry does not help. */
export const LOGGED_OUT = 4401;

/** Return the wait before try number `tries` (from 0); `random` in [0, 1). */
export function backoff(tries: number, random: number): number {
  const maximum = Math.min(MAX_MS, FIRST_MS * 2 ** Math.min(tries, 10));
  return Math.round(maximum * (0.7 + 0.3 * random));
}

export class Socket {
  private socket: SocketLike | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private tries = 0;

  constructor(
    private readonly events: SocketEvents,
    private readonly make: () => SocketLike,
    private readonly random: () => number = Math.random,
  ) {}

  get isOpen(): boolean {
    return this.socket?.readyState === OPEN;
  }

  connect(): void {
    if (this.socket !== null) return;
    this.stopTimer();
    const socket = this.make();
    this.socket = socket;
    this.timer = setTimeout(() => this.reset(), OPEN_MS);
    socket.onopen = () => {
      if (this.socket !== socket) return;
      this.stopTimer();
      this.events.opened();
    };
    socket.onmessage = (event) => {
      if (this.socket !== socket || typeof event.data !== "string") return;
      let data: unknown;
      try {
        data = JSON.parse(event.data);
      } catch {
        return this.reset();
      }
      // Reset only on a message: a server that accepts and closes must not be retried at once.
      this.tries = 0;
      this.events.received(data);
    };
    socket.onclose = (event) => this.lost(socket, event.code);
  }

  send(message: object): boolean {
    if (!this.isOpen) return false;
    this.socket?.send(JSON.stringify(message));
    return true;
  }

  /** Replace a connection that no longer answers. */
  reset(): void {
    const socket = this.socket;
    if (socket === null) return;
    this.lost(socket, 0);
    socket.close();
  }

  /** Connect now: the network or the tab is back. */
  hurry(): void {
    this.tries = 0;
    if (this.socket === null) this.connect();
  }

  private stopTimer(): void {
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
  }

  private lost(socket: SocketLike, code: number): void {
    if (this.socket !== socket) return;
    this.socket = null;
    this.stopTimer();
    this.events.closed(code);
    if (code === LOGGED_OUT) return;
    this.timer = setTimeout(() => this.connect(), backoff(this.tries, this.random()));
    this.tries += 1;
  }
}

export function liveSocket(): SocketLike {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  return new WebSocket(`${scheme}//${location.host}/ws/live/`);
}

// From bytes to lines: UTF-8 across chunk boundaries, colours across lines, carriage returns as a terminal shows them.
import { Ansi, type Piece } from "./ansi";

export type LogLine = readonly Piece[];

export class Lines {
  private readonly decoder = new TextDecoder("utf-8");
  private readonly ansi = new Ansi();
  private current: Piece[] = [];
  private isReturned = false;

  /** The lines that became complete; what is begun is `open`. */
  feed(bytes: Uint8Array, isLast = false): LogLine[] {
    const text = this.decoder.decode(bytes, { stream: !isLast });
    const done: LogLine[] = [];
    for (const piece of this.ansi.feed(text)) {
      for (const part of piece.text.split(/(\r\n|\n|\r)/)) this.take(part, piece, done);
    }
    return done;
  }

  get open(): LogLine {
    return this.current;
  }

  private take(part: string, piece: Piece, done: LogLine[]): void {
    if (part === "") return;
    if (part === "\r") {
      this.isReturned = true;
    } else if (part === "\n" || part === "\r\n") {
      done.push(this.current);
      this.current = [];
      this.isReturned = false;
    } else {
      // What follows a bare return overwrites the line: the last state of a progress bar is what is kept.
      if (this.isReturned) this.current = [];
      this.isReturned = false;
      this.current.push({ ...piece, text: part });
    }
  }
}

/** Where the first whole character and, if there is one early enough, the first whole line begins. */
export function wholeFrom(bytes: Uint8Array): number {
  const newline = bytes.indexOf(10);
  if (newline >= 0 && newline < bytes.length - 1) return newline + 1;
  let at = 0;
  while (at < 3 && at < bytes.length && ((bytes[at] ?? 0) & 0xc0) === 0x80) at += 1;
  return at;
}

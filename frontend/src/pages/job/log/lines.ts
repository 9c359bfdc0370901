// From bytes to lines: UTF-8 across chunk boundaries, colours across lines, carriage returns as a terminal shows them; lines that
// do not end are broken.
import { Ansi, type Piece } from "./ansi";

export type LogLine = readonly Piece[];

/** In characters: what is longer goes on in a new line, so that no line costs more than this to draw anew. */
export const MAX_LINE = 8192;

export class Lines {
  private readonly decoder = new TextDecoder("utf-8");
  private readonly ansi = new Ansi();
  private current: Piece[] = [];
  private length = 0;
  private isReturned = false;

  /** The lines that became complete; what is begun is `open`. */
  feed(bytes: Uint8Array, isLast = false): LogLine[] {
    const text = this.decoder.decode(bytes, { stream: !isLast });
    const complete: LogLine[] = [];
    for (const piece of this.ansi.feed(text)) {
      for (const part of piece.text.split(/(\r\n|\n|\r)/)) this.addPart(part, piece, complete);
    }
    return complete;
  }

  get open(): LogLine {
    return this.current;
  }

  /** Ends the line that is begun as if a newline had come. */
  cut(): LogLine[] {
    const complete: LogLine[] = [];
    if (this.length > 0) this.end(complete);
    return complete;
  }

  private end(complete: LogLine[]): void {
    complete.push(this.current);
    this.current = [];
    this.length = 0;
  }

  private addPart(part: string, piece: Piece, complete: LogLine[]): void {
    if (part === "") return;
    if (part === "\r") {
      this.isReturned = true;
    } else if (part === "\n" || part === "\r\n") {
      this.end(complete);
      this.isReturned = false;
    } else {
      // What follows a bare return overwrites the line: the last state of a progress bar is what is kept.
      if (this.isReturned) [this.current, this.length] = [[], 0];
      this.isReturned = false;
      this.add(part, piece, complete);
    }
  }

  private add(text: string, style: Piece, complete: LogLine[]): void {
    for (let remaining = text; remaining !== ""; ) {
      if (this.length >= MAX_LINE - 1) this.end(complete);
      const room = MAX_LINE - this.length;
      // Not between the two halves of one character.
      const cut = /[\ud800-\udbff]/.test(remaining.charAt(room - 1)) ? room - 1 : room;
      this.put({ ...style, text: remaining.slice(0, cut) });
      remaining = remaining.slice(cut);
    }
  }

  /** A line that comes character by character is not as many pieces. */
  private put(piece: Piece): void {
    const last = this.current.at(-1);
    const isSame = last?.classes === piece.classes && last.colour === piece.colour && last.background === piece.background;
    if (isSame) this.current[this.current.length - 1] = { ...piece, text: last.text + piece.text };
    else this.current.push(piece);
    this.length += piece.text.length;
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

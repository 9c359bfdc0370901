// Split bytes into lines: UTF-8 across chunks, colours across lines, carriage returns as in a terminal. Long lines
// are broken.
import { Ansi, type Piece } from "./ansi";

export type LogLine = readonly Piece[];

/** In characters: longer lines are broken, to bound the cost of a redraw. */
export const MAX_LINE = 8192;

export class Lines {
  private readonly decoder = new TextDecoder("utf-8");
  private readonly ansi = new Ansi();
  private current: Piece[] = [];
  private length = 0;
  private isReturned = false;

  /** Return completed lines; the incomplete one is `open`. */
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

  /** Complete the open line as if by a newline. */
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
      // Text after a bare return overwrites the line, as progress bars do.
      if (this.isReturned) [this.current, this.length] = [[], 0];
      this.isReturned = false;
      this.add(part, piece, complete);
    }
  }

  private add(text: string, style: Piece, complete: LogLine[]): void {
    for (let remaining = text; remaining !== ""; ) {
      if (this.length >= MAX_LINE - 1) this.end(complete);
      const room = MAX_LINE - this.length;
      // Do not split a surrogate pair.
      const cut = /[\ud800-\udbff]/.test(remaining.charAt(room - 1)) ? room - 1 : room;
      this.put({ ...style, text: remaining.slice(0, cut) });
      remaining = remaining.slice(cut);
    }
  }

  /** Merge pieces of the same style. */
  private put(piece: Piece): void {
    const last = this.current.at(-1);
    const isSame = last?.classes === piece.classes && last.colour === piece.colour && last.background === piece.background;
    if (isSame) this.current[this.current.length - 1] = { ...piece, text: last.text + piece.text };
    else this.current.push(piece);
    this.length += piece.text.length;
  }
}

/** Return the offset of the first whole line, or else of the first whole character. */
export function wholeFrom(bytes: Uint8Array): number {
  const newline = bytes.indexOf(10);
  if (newline >= 0 && newline < bytes.length - 1) return newline + 1;
  let at = 0;
  while (at < 3 && at < bytes.length && ((bytes[at] ?? 0) & 0xc0) === 0x80) at += 1;
  return at;
}

// The part of a log held by the page: it grows at either end and drops blocks at the other.
import { Lines, wholeFrom } from "./lines";
import type { Screen } from "./screen";
import type { LogPart } from "./tail";

/** In characters, including the cost per line. */
export const MAX_CHARACTERS = 1_000_000;
/** The approximate size of a block. */
const BLOCK_BYTES = 131_072;
const NEWLINE = 10;

interface Block {
  /** Byte range of whole lines. */
  from: number;
  to: number;
  size: number;
  element: HTMLElement;
}

type Bytes = Pick<LogPart, "bytes" | "offset"> & { isComplete?: boolean };

export class LogWindow {
  private blocks: Block[] = [];
  private lines = new Lines();
  /** The first byte of the next part below. */
  next = 0;

  constructor(
    private readonly screen: Screen,
    private readonly maxCharacters = MAX_CHARACTERS,
  ) {}

  /** The first visible byte. */
  get start(): number {
    return this.blocks[0]?.from ?? 0;
  }

  get size(): number {
    return this.blocks.reduce((sum, block) => sum + block.size, 0);
  }

  /** Whether new lines at one end would drop lines at the other. */
  get isFull(): boolean {
    return this.size > this.maxCharacters * 0.9;
  }

  /** Replace everything with these bytes, from their first whole line unless they start the log. */
  begin(part: Bytes): void {
    const skipped = part.offset > 0 ? wholeFrom(part.bytes) : 0;
    this.screen.clear();
    this.lines = new Lines();
    this.blocks = [];
    this.next = part.offset + skipped;
    this.open();
    this.below({ ...part, bytes: part.bytes.subarray(skipped), offset: this.next });
  }

  /** Replace everything with these bytes and scroll to the line of byte `at`. */
  beginAround(part: Bytes, at: number): void {
    const inPart = Math.max(0, Math.min(part.bytes.length, at - part.offset));
    const line = part.bytes.subarray(0, inPart).lastIndexOf(NEWLINE) + 1;
    // If the line starts before these bytes, split it at the match.
    const split = line > 0 || part.offset === 0 ? line : inPart;
    this.begin({ bytes: part.bytes.subarray(0, split), offset: part.offset });
    this.endBlock();
    const { element } = this.open();
    this.below({ ...part, bytes: part.bytes.subarray(split), offset: part.offset + split });
    this.screen.point(element);
  }

  /** Add bytes at the end, dropping blocks at the top. */
  below({ bytes, offset, isComplete }: Bytes): void {
    const block = this.blocks.at(-1) ?? this.open();
    block.size += this.screen.fill(block.element, this.lines.feed(bytes, isComplete));
    this.next = offset + bytes.length;
    const completeBytes = bytes.lastIndexOf(NEWLINE) + 1;
    if (completeBytes > 0) block.to = offset + completeBytes;
    else if (this.next - block.to > BLOCK_BYTES) this.endBlock();
    this.screen.showOpen(this.lines.open);
    // Before the next block opens: one of many short lines can be larger than the window, and must stay.
    while (this.size > this.maxCharacters && this.blocks.length > 1) this.blocks.shift()?.element.remove();
    if (block.to - block.from > BLOCK_BYTES || block.size > this.maxCharacters / 8) this.open();
  }

  /** Add bytes at the start, dropping blocks at the end. Return whether any was dropped. */
  above(part: Bytes): boolean {
    const skipped = part.offset > 0 ? wholeFrom(part.bytes) : 0;
    const piece = new Lines();
    const lines = piece.feed(part.bytes.subarray(skipped), true);
    const to = this.start;
    const { block: element, size } = this.screen.blockAbove([...lines, ...piece.cut()]);
    this.blocks.unshift({ from: part.offset + skipped, to, size, element });
    let hasGone = false;
    while (this.size > this.maxCharacters && this.blocks.length > 1) {
      this.blocks.pop()?.element.remove();
      hasGone = true;
    }
    if (hasGone) this.forgetOpen();
    return hasGone;
  }

  private forgetOpen(): void {
    this.lines = new Lines();
    this.screen.showOpen([]);
    this.next = this.blocks.at(-1)?.to ?? 0;
  }

  /** Complete the open line, to close its block. */
  private endBlock(): void {
    const block = this.blocks.at(-1);
    if (block === undefined) return;
    block.size += this.screen.fill(block.element, this.lines.cut());
    this.screen.showOpen([]);
    block.to = this.next;
  }

  private open(): Block {
    const from = this.blocks.at(-1)?.to ?? this.next;
    const block = { from, to: from, size: 0, element: this.screen.blockBelow() };
    this.blocks.push(block);
    return block;
  }
}

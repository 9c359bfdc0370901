// Parse terminal output: colours become styled pieces, other control sequences are dropped.

export interface Piece {
  text: string;
  /** Space-separated class names; empty is plain. */
  classes: string;
  /** CSS colours beyond the basic sixteen. */
  colour?: string;
  background?: string;
}

interface Style {
  flags: Set<string>;
  fg: string;
  bg: string;
}

const FLAGS: Record<number, string> = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
const ENDS: Record<number, string[]> = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"] };
/** A complete sequence, or another control character. */
const SEQUENCE = /\x1b(?:\[([0-?]*)([ -/]*[@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]+[0-~]|[0-Z\\^-~])|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\x1b/g;
const CUT_OFF = /\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)?$/;
const MAX_KEPT = 4096;

export class Ansi {
  private pending = "";
  private style: Style = { flags: new Set(), fg: "", bg: "" };

  /** Return pieces of text, including newlines and carriage returns. */
  feed(text: string): Piece[] {
    let all = this.pending + text;
    this.pending = "";
    const cut = CUT_OFF.exec(all.slice(-MAX_KEPT));
    if (cut !== null) {
      this.pending = cut[0];
      all = all.slice(0, all.length - this.pending.length);
    }
    const pieces: Piece[] = [];
    let from = 0;
    for (const match of all.matchAll(SEQUENCE)) {
      this.put(pieces, all.slice(from, match.index));
      from = match.index + match[0].length;
      if (match[2] === "m") this.sgr(match[1] ?? "");
    }
    this.put(pieces, all.slice(from));
    return pieces;
  }

  private put(pieces: Piece[], text: string): void {
    if (text === "") return;
    const { flags, fg, bg } = this.style;
    const names = [...flags].map((flag) => `ansi-${flag}`);
    const piece: Piece = { text, classes: "" };
    if (/^\d/.test(fg)) names.push(`ansi-fg-${fg}`);
    else if (fg !== "") piece.colour = fg;
    if (/^\d/.test(bg)) names.push(`ansi-bg-${bg}`);
    else if (bg !== "") piece.background = bg;
    piece.classes = names.join(" ");
    pieces.push(piece);
  }

  private sgr(parameters: string): void {
    if (!/^[\d;:]*$/.test(parameters)) return;
    const codes = parameters.split(";").flatMap(codesOf);
    for (let at = 0; at < codes.length; at += 1) {
      const code = codes[at] ?? 0;
      const { style } = this;
      if (code === 0) this.style = { flags: new Set(), fg: "", bg: "" };
      else if (FLAGS[code] !== undefined) style.flags.add(FLAGS[code]);
      else if (ENDS[code] !== undefined) ENDS[code].forEach((flag) => style.flags.delete(flag));
      else if (code >= 30 && code <= 37) style.fg = String(code - 30);
      else if (code >= 90 && code <= 97) style.fg = String(code - 82);
      else if (code >= 40 && code <= 47) style.bg = String(code - 40);
      else if (code >= 100 && code <= 107) style.bg = String(code - 92);
      else if (code === 39) style.fg = "";
      else if (code === 49) style.bg = "";
      else if (code === 38 || code === 48 || code === 58) {
        const [colour, used] = extended(codes, at + 1);
        // 58 is the colour of underlines, which is not shown.
        if (code === 38) style.fg = colour;
        else if (code === 48) style.bg = colour;
        at += used;
      }
    }
  }
}

/** Return the codes of a parameter. With colons, a colour can have a colour space, and an underline a style: 38:2::255:0:0, 4:3. */
function codesOf(parameter: string): number[] {
  const [code = 0, kind = 0, ...more] = parameter.split(":").map(Number);
  if (!parameter.includes(":")) return [code];
  if (code === 4) return [kind === 0 ? 24 : 4];
  return [38, 48, 58].includes(code) ? [code, kind, ...more.slice(kind === 2 ? -3 : 0)] : [];
}

/** Return the colour after 38 or 48, and the number of codes used. */
function extended(codes: readonly number[], at: number): [string, number] {
  const byte = (value: number | undefined): number => Math.min(255, Math.max(0, value ?? 0));
  if (codes[at] === 2) return [`rgb(${byte(codes[at + 1])}, ${byte(codes[at + 2])}, ${byte(codes[at + 3])})`, 4];
  if (codes[at] !== 5) return ["", 0];
  return [palette(byte(codes[at + 1])), 2];
}

/** Return one of 256 colours: sixteen by class, a cube, greys. */
function palette(index: number): string {
  if (index < 16) return String(index);
  if (index >= 232) {
    const grey = 8 + 10 * (index - 232);
    return `rgb(${grey}, ${grey}, ${grey})`;
  }
  const level = (part: number): number => (part === 0 ? 0 : 55 + 40 * part);
  const cube = index - 16;
  return `rgb(${level(Math.floor(cube / 36))}, ${level(Math.floor(cube / 6) % 6)}, ${level(cube % 6)})`;
}

// Draw the fleet on a canvas: each cell by colour and shape. Independent of events and the page.
import type { Kind } from "./looks";
import type { Layout } from "./layout";

/** The drawing data of a cell, computed when data change. */
export interface CellPaint {
  kind: Kind;
  /** 0 to 1 along the ramp; null where unknown; undefined where states are shown. */
  value: number | null | undefined;
  /** The index of the owner's colour; null without an owner, undefined if owners are not shown. */
  owner?: number | null | undefined;
  isHeld: boolean;
  isDim: boolean;
  isLit: boolean;
  first: string;
  second: string;
  third: string;
}

export interface Palette {
  busy: string;
  heldIdle: string;
  free: string;
  unavailable: string;
  text: string;
  muted: string;
  onBusy: string;
  line: string;
  accent: string;
  surface: string;
  red: string;
  amber: string;
  /** Of the owners with most GPUs; the last colour is for all others. */
  owners: readonly string[];
  ramp: readonly string[];
  /** The colour of words on each step of the ramp. */
  onRamp: readonly string[];
}

export type Context = Pick<
  CanvasRenderingContext2D,
  | "fillStyle" | "strokeStyle" | "lineWidth" | "font" | "textBaseline" | "textAlign" | "globalAlpha"
  | "drawImage" | "fillRect" | "strokeRect" | "clearRect" | "beginPath" | "moveTo" | "lineTo" | "closePath" | "fill" | "stroke" | "fillText"
>;

const FONT = "system-ui, sans-serif";
/** The smallest cell with text. */
const BIG = 40;

/** Draw a cell at a position. */
export type Stamp = (context: Context, x: number, y: number, size: number, cell: CellPaint, colours: Palette) => void;

/** Paint the cells over the cards. */
export function paint(context: Context, layout: Layout, cells: readonly CellPaint[], colours: Palette, stamp: Stamp = paintCell): void {
  const { size } = layout;
  let isDim = false;
  layout.cells.forEach((box, at) => {
    const cell = cells[at];
    if (cell === undefined) return;
    if (cell.isDim !== isDim) {
      isDim = cell.isDim;
      context.globalAlpha = isDim ? 0.2 : 1;
    }
    stamp(context, box.x, box.y, size, cell, colours);
    if (cell.isLit) paintLight(context, box.x, box.y, size, colours);
    if (size >= BIG) words(context, box.x, box.y, size, cell, colours);
  });
  context.globalAlpha = 1;
}

/** Outline the pointed or focused cell. */
export function paintFocus(context: Context, layout: Layout, at: number, colours: Palette): void {
  const box = layout.cells[at];
  if (box === undefined) return;
  context.strokeStyle = colours.accent;
  context.lineWidth = 2;
  context.strokeRect(box.x - 1, box.y - 1, layout.size + 2, layout.size + 2);
}

/** Paint cards, names and titles, which change only with nodes. */
export function paintCards(context: Context, layout: Layout, colours: Palette): void {
  const { size, headHeight } = layout;
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  for (const card of layout.cards) context.strokeRect(card.x + 0.5, card.y + 0.5, card.width - 1, card.height - 1);
  context.fillStyle = colours.muted;
  if (headHeight >= 12) {
    const points = size >= 24 ? 12 : 9;
    context.font = `${points}px ${FONT}`;
    const inset = size >= 24 ? 6 : 2;
    for (const card of layout.cards) {
      const maxLength = Math.max(1, Math.floor((card.width - 2 * inset) / (points * 0.56)));
      const name = card.name.length > maxLength ? `…${card.name.slice(1 - maxLength)}` : card.name;
      context.fillText(name, card.x + inset, card.y + inset / 2 + headHeight / 2);
    }
  }
  context.fillStyle = colours.text;
  context.font = `600 13px ${FONT}`;
  for (const title of layout.titles) context.fillText(title.text, title.x, title.y + 10, title.width);
}

/** Paint the colour and shape of a cell. */
export function paintCell(context: Context, x: number, y: number, size: number, cell: CellPaint, colours: Palette): void {
  const isRamp = cell.value !== undefined || cell.owner !== undefined;
  if (cell.owner !== undefined) {
    context.fillStyle = cell.owner === null ? colours.free : (colours.owners[Math.min(cell.owner, colours.owners.length - 1)] ?? colours.busy);
    if (cell.kind === "unknown" || cell.kind === "unavailable") hatch(context, x, y, size, colours.unavailable);
    else context.fillRect(x, y, size, size);
  } else if (isRamp && cell.value !== null) {
    // Two filled squares are several times faster than an outline.
    context.fillStyle = colours.line;
    context.fillRect(x, y, size, size);
    context.fillStyle = colours.ramp[step(cell.value as number, colours.ramp)] ?? colours.free;
    context.fillRect(x + 1, y + 1, size - 2, size - 2);
  } else if (isRamp) {
    hatch(context, x, y, size, colours.unavailable);
  }
  shape(context, x, y, size, cell, colours, isRamp);
}

function paintLight(context: Context, x: number, y: number, size: number, colours: Palette): void {
  // Two contrasting lines are visible on every cell colour.
  context.strokeStyle = colours.surface;
  context.lineWidth = 1;
  context.strokeRect(x + 1.5, y + 1.5, size - 3, size - 3);
  context.strokeStyle = colours.text;
  context.lineWidth = Math.min(3, Math.max(1.5, size / 12));
  context.strokeRect(x, y, size, size);
}

/** Return the index of a value on the ramp. */
export const step = (value: number, ramp: readonly string[]): number => Math.round(value * (ramp.length - 1));

function shape(context: Context, x: number, y: number, size: number, { kind, isHeld }: CellPaint, colours: Palette, isOverlay: boolean): void {
  if (!isOverlay) {
    if (kind === "busy") {
      context.fillStyle = colours.busy;
      context.fillRect(x, y, size, size);
      return;
    }
    if (kind === "unavailable" || kind === "unknown") return hatch(context, x, y, size, colours.unavailable);
    const isBase = isHeld && kind !== "held-idle";
    context.fillStyle = isBase ? colours.busy : colours.free;
    context.fillRect(x, y, size, size);
    if (!isBase) outline(context, x, y, size, kind === "held-idle" ? colours.heldIdle : colours.line);
  }
  if (kind === "held-idle") {
    context.fillStyle = colours.heldIdle;
    context.fillRect(x, y, isOverlay || size >= BIG ? Math.max(2, size * 0.15) : size / 2, size);
  } else if (size >= BIG && kind !== "busy") {
    // With text, the shape is in the corner.
    mark(context, x + 3, y + 3, size * 0.24, kind, colours);
  } else {
    mark(context, x, y, size, kind, colours);
  }
}

function mark(context: Context, x: number, y: number, size: number, kind: Kind, colours: Palette): void {
  if (kind === "hot") {
    path(context, colours.amber, [[x + size / 2, y + size * 0.15], [x + size * 0.88, y + size * 0.85], [x + size * 0.12, y + size * 0.85]]);
  } else if (kind === "dirty" || kind === "foreign") {
    path(context, kind === "foreign" ? colours.red : colours.amber, [[x + size / 2, y + size * 0.1], [x + size * 0.9, y + size / 2], [x + size / 2, y + size * 0.9], [x + size * 0.1, y + size / 2]]);
  } else if (kind === "quarantined" || kind === "failed") {
    const inset = size * 0.2;
    context.strokeStyle = colours.red;
    context.lineWidth = Math.max(1.5, size / 7);
    context.beginPath();
    context.moveTo(x + inset, y + inset);
    context.lineTo(x + size - inset, y + size - inset);
    context.moveTo(x + size - inset, y + inset);
    context.lineTo(x + inset, y + size - inset);
    context.stroke();
  }
}

function path(context: Context, colour: string, points: readonly (readonly [number, number])[]): void {
  context.fillStyle = colour;
  context.beginPath();
  points.forEach(([x, y], at) => (at === 0 ? context.moveTo(x, y) : context.lineTo(x, y)));
  context.closePath();
  context.fill();
}

function outline(context: Context, x: number, y: number, size: number, colour: string): void {
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
}

/** Diagonals that stay within the cell. */
function hatch(context: Context, x: number, y: number, size: number, colour: string): void {
  outline(context, x, y, size, colour);
  const step = Math.max(3, size / 5);
  context.beginPath();
  for (let at = step; at < 2 * size; at += step) {
    const over = Math.max(0, at - size);
    context.moveTo(x + over, y + Math.min(at, size));
    context.lineTo(x + Math.min(at, size), y + over);
  }
  context.stroke();
}

/** The colour of words on a cell. */
function ink(cell: CellPaint, colours: Palette): string {
  if (cell.owner !== undefined) return cell.owner === null || cell.kind === "unknown" ? colours.text : colours.onBusy;
  if (cell.value === undefined) return cell.isHeld && cell.kind !== "held-idle" && cell.kind !== "unknown" ? colours.onBusy : colours.text;
  return cell.value === null ? colours.text : (colours.onRamp[step(cell.value, colours.ramp)] ?? colours.text);
}

function words(context: Context, x: number, y: number, size: number, cell: CellPaint, colours: Palette): void {
  const isHatched = cell.value === null || cell.kind === "unknown" || (cell.value === undefined && cell.kind === "unavailable");
  [context.textAlign, context.textBaseline] = ["center", "middle"];
  const points = size >= 72 ? 13 : 11;
  const maxLength = Math.floor((size - 6) / (points * 0.58));
  const texts = [cell.first, cell.second, size >= 72 ? cell.third : ""].filter((text) => text !== "");
  texts.forEach((text, row) => {
    const visible = text.length > maxLength ? `${text.slice(0, maxLength - 1)}…` : text;
    const at = y + size / 2 + (row - (texts.length - 1) / 2) * points * 1.35;
    context.font = `${row === 0 ? 600 : 400} ${row === 2 ? points - 2 : points}px ${FONT}`;
    if (isHatched) {
      context.fillStyle = colours.surface;
      context.fillRect(x + size * 0.1, at - points * 0.7, size * 0.8, points * 1.4);
    }
    context.fillStyle = ink(cell, colours);
    context.fillText(visible, x + size / 2, at);
  });
  context.textAlign = "left";
}

// Cells with a shape or hatch are drawn once per appearance and copied; flat cells are faster to draw.
import { type CellPaint, type Context, type Palette, type Stamp, paintCell, step } from "./paint";

/** The size of the sheet, larger than the number of appearances. */
const ACROSS = 32;
const DOWN = 32;

/** For one size of cell, one resolution and one palette. */
export function stamps(size: number, ratio: number, colours: Palette): Stamp {
  // Whole device pixels with a gap, so that appearances do not bleed.
  const pixels = Math.ceil(size * ratio);
  const pitch = pixels + 2;
  const sheet = document.createElement("canvas");
  sheet.width = ACROSS * pitch;
  sheet.height = DOWN * pitch;
  const sheetContext = sheet.getContext("2d");
  const placeByKey = new Map<number, number>();
  if (sheetContext === null) return paintCell;

  const make = (cell: CellPaint): number => {
    const place = placeByKey.size;
    sheetContext.setTransform(pixels / size, 0, 0, pixels / size, (place % ACROSS) * pitch + 1, Math.floor(place / ACROSS) * pitch + 1);
    paintCell(sheetContext as Context, 0, 0, size, cell, colours);
    return place;
  };
  return (context, x, y, _size, cell) => {
    if (isFlat(cell)) return paintCell(context, x, y, size, cell, colours);
    const key = keyOf(cell, colours);
    let place = placeByKey.get(key);
    if (place === undefined) {
      if (placeByKey.size >= ACROSS * DOWN) return paintCell(context, x, y, size, cell, colours);
      place = make(cell);
      placeByKey.set(key, place);
    }
    context.drawImage(sheet, (place % ACROSS) * pitch + 1, Math.floor(place / ACROSS) * pitch + 1, pixels, pixels, x, y, size, size);
  };
}

/** A rectangle or two. */
const isFlat = ({ kind, value, owner }: CellPaint): boolean => (kind === "busy" || (kind === "free" && (value !== undefined || owner !== undefined))) && value !== null;

const KINDS = ["busy", "held-idle", "free", "unavailable", "hot", "failed", "quarantined", "foreign", "dirty", "unknown"] as const;

/** A key equal for cells of the same appearance. */
function keyOf({ kind, isHeld, value, owner }: CellPaint, colours: Palette): number {
  const shade = owner === null ? 1 : owner !== undefined ? 2 + Math.min(owner, colours.owners.length - 1) : value === undefined ? 0 : value === null ? 31 : 32 + step(value, colours.ramp);
  return (shade * KINDS.length + KINDS.indexOf(kind)) * 2 + (isHeld ? 1 : 0);
}

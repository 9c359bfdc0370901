// Layout of the fleet map: the largest cells with which every node card fits.

export interface LayoutNode {
  name: string;
  cells: number;
}

export interface LayoutGroup {
  title: string;
  nodes: readonly LayoutNode[];
}

export interface CellBox {
  x: number;
  y: number;
  /** Indices in the flat lists of nodes and of cells. */
  node: number;
  index: number;
}

export interface CardBox {
  x: number;
  y: number;
  width: number;
  height: number;
  name: string;
}

export interface Layout {
  size: number;
  gap: number;
  headHeight: number;
  width: number;
  height: number;
  cells: CellBox[];
  cards: CardBox[];
  titles: { x: number; y: number; width: number; text: string }[];
}

export const LARGEST = 96;
export const SMALLEST = 7;
const TITLE = 22;
const COLUMN_GAP = 20;
/** The width of a title per letter, and its maximum, so that titles do not overlap. */
const LETTER = 7.5;
const LONGEST_TITLE = 320;

/** 8 devices form two rows of 4. */
export function columns(cells: number): number {
  return cells <= 4 ? Math.max(cells, 1) : Math.ceil(cells / Math.ceil(cells / (cells > 16 ? 8 : 4)));
}

export function layout(groups: readonly LayoutGroup[], width: number, height: number): Layout {
  const title = Math.min(LONGEST_TITLE, LETTER * Math.max(...groups.map((group) => group.title.length)));
  const maxColumns = Math.max(1, Math.floor((width + COLUMN_GAP) / (title + COLUMN_GAP)));
  const abreast = groups.length > 1 ? [1, 2, 3, 4, 5].filter((side) => side <= maxColumns) : [1];
  const candidates = abreast.map((side) => largest(groups, width, height, side));
  const rank = (candidate: Layout): number => (candidate.width > width ? -1 : candidate.height <= height ? candidate.size : 1 / candidate.height);
  return candidates.reduce((best, each) => (rank(each) > rank(best) ? each : best));
}

/** Binary search: what fits with large cells fits with smaller ones. */
function largest(groups: readonly LayoutGroup[], width: number, height: number, side: number): Layout {
  let best = place(groups, width, SMALLEST, side);
  let [from, to] = [SMALLEST + 1, LARGEST];
  while (from <= to) {
    const size = Math.ceil((from + to) / 2);
    const tried = place(groups, width, size, side);
    if (tried.width <= width && tried.height <= height) [best, from] = [tried, size + 1];
    else to = size - 1;
  }
  return best;
}

/** Place groups into the shortest column, and their cards in lines, for one cell size. */
function place(groups: readonly LayoutGroup[], width: number, size: number, abreast: number): Layout {
  const gap = size >= 24 ? 3 : size >= 12 ? 2 : 1;
  const headHeight = size >= 24 ? 18 : size >= 11 ? 12 : 2;
  const padding = size >= 24 ? 6 : 2;
  const between = size >= 24 ? 10 : size >= 12 ? 5 : 4;
  const room = (width - (abreast - 1) * COLUMN_GAP) / abreast;
  const ends = Array.from({ length: abreast }, () => 0);
  const result: Layout = { size, gap, headHeight, width: 0, height: 0, cells: [], cards: [], titles: [] };
  for (const group of groups) {
    const column = ends.indexOf(Math.min(...ends));
    const left = Math.round(column * (room + COLUMN_GAP));
    let y = ends[column] ?? 0;
    if (group.title !== "") {
      result.titles.push({ x: left, y, width: room, text: group.title });
      y += TITLE;
    }
    let [x, tallest] = [0, 0];
    for (const node of group.nodes) {
      const across = columns(node.cells);
      const down = Math.max(1, Math.ceil(node.cells / across));
      const box = { width: across * (size + gap) - gap + 2 * padding, height: headHeight + down * (size + gap) - gap + 2 * padding };
      if (x > 0 && x + box.width > room) {
        [x, y, tallest] = [0, y + tallest + between, 0];
      }
      for (let at = 0; at < node.cells; at += 1) {
        const [cross, line] = [at % across, Math.floor(at / across)];
        const [cellX, cellY] = [left + x + padding + cross * (size + gap), y + padding + headHeight + line * (size + gap)];
        result.cells.push({ x: cellX, y: cellY, node: result.cards.length, index: at });
      }
      result.cards.push({ x: left + x, y, ...box, name: node.name });
      // A card wider than its column does not fit.
      result.width = Math.max(result.width, x + box.width > room ? width + 1 : left + x + box.width);
      tallest = Math.max(tallest, box.height);
      x += box.width + between;
    }
    ends[column] = y + tallest + 2 * between;
    result.height = Math.max(result.height, y + tallest);
  }
  return result;
}

/** The cell under a point, or -1. */
export function hit(placed: Layout, x: number, y: number): number {
  const { size, gap } = placed;
  return placed.cells.findIndex((cell) => x >= cell.x && y >= cell.y && x < cell.x + size + gap && y < cell.y + size + gap);
}

/** Return the next cell in a direction, preferring the same line. */
export function neighbour(placed: Layout, from: number, dx: number, dy: number): number {
  const start = placed.cells[from];
  if (start === undefined) return placed.cells.length > 0 ? 0 : -1;
  let [best, cost] = [from, Infinity];
  placed.cells.forEach((cell, at) => {
    const [x, y] = [cell.x - start.x, cell.y - start.y];
    const along = x * dx + y * dy;
    const aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (along <= 0 || (dx !== 0 && aside > placed.size / 2)) return;
    const price = along + 3 * aside;
    if (price < cost) [best, cost] = [at, price];
  });
  return best;
}

// Where each cell of the fleet goes: the largest cells with which every node card fits the space.

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
  /** Of the flat list of cells, and of the flat list of nodes. */
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
  titles: { x: number; y: number; text: string }[];
}

export const LARGEST = 96;
export const SMALLEST = 7;
const TITLE = 22;

/** 8 devices stand in two rows of 4; a lone one stands alone. */
export function columns(cells: number): number {
  return cells <= 4 ? Math.max(cells, 1) : Math.ceil(cells / Math.ceil(cells / (cells > 16 ? 8 : 4)));
}

export function layout(groups: readonly LayoutGroup[], width: number, height: number): Layout {
  for (let size = LARGEST; size > SMALLEST; size -= size > 40 ? 4 : 1) {
    const fitting = place(groups, width, size);
    if (fitting.height <= height && fitting.width <= width) return fitting;
  }
  return place(groups, width, SMALLEST);
}

/** Card after card in lines, with one size of cell. */
function place(groups: readonly LayoutGroup[], width: number, size: number): Layout {
  const gap = size >= 24 ? 3 : size >= 12 ? 2 : 1;
  const headHeight = size >= 24 ? 18 : size >= 11 ? 12 : 2;
  const padding = size >= 24 ? 6 : 2;
  const between = size >= 24 ? 10 : size >= 12 ? 5 : 4;
  const cards: CardBox[] = [];
  const cells: CellBox[] = [];
  const titles: Layout["titles"] = [];
  let [y, widest] = [0, 0];
  for (const group of groups) {
    if (group.title !== "") {
      titles.push({ x: 0, y, text: group.title });
      y += TITLE;
    }
    let [x, tallest] = [0, 0];
    for (const node of group.nodes) {
      const across = columns(node.cells);
      const down = Math.max(1, Math.ceil(node.cells / across));
      const box = { width: across * (size + gap) - gap + 2 * padding, height: headHeight + down * (size + gap) - gap + 2 * padding };
      if (x > 0 && x + box.width > width) {
        [x, y, tallest] = [0, y + tallest + between, 0];
      }
      for (let at = 0; at < node.cells; at += 1) {
        const [column, line] = [at % across, Math.floor(at / across)];
        cells.push({ x: x + padding + column * (size + gap), y: y + padding + headHeight + line * (size + gap), node: cards.length, index: at });
      }
      cards.push({ x, y, ...box, name: node.name });
      widest = Math.max(widest, x + box.width);
      tallest = Math.max(tallest, box.height);
      x += box.width + between;
    }
    y += tallest + between;
  }
  return { size, gap, headHeight, width: widest, height: Math.max(0, y - between), cells, cards, titles };
}

/** The cell under a point, or -1. */
export function hit(where: Layout, x: number, y: number): number {
  const { size, gap } = where;
  return where.cells.findIndex((cell) => x >= cell.x && y >= cell.y && x < cell.x + size + gap && y < cell.y + size + gap);
}

/** The next cell in a direction: along the line first; the nearest where there is none straight on. */
export function neighbour(where: Layout, from: number, dx: number, dy: number): number {
  const start = where.cells[from];
  if (start === undefined) return where.cells.length > 0 ? 0 : -1;
  let [best, cost] = [from, Infinity];
  where.cells.forEach((cell, at) => {
    const [x, y] = [cell.x - start.x, cell.y - start.y];
    const along = x * dx + y * dy;
    const aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (along <= 0 || (dx !== 0 && aside > where.size / 2)) return;
    const price = along + 3 * aside;
    if (price < cost) [best, cost] = [at, price];
  });
  return best;
}

// The strip of the whole fleet on the Overview: a cell per GPU, node after node; which is where, and what it opens.
import { h, plural } from "../dom";
import type { MakeView } from "../regions";
import type { Cell, NodeRow } from "../topics";
import { CELLS, CELL_WORDS, byName, noNodes, whenEmpty } from "../views/pieces";
import { type FleetCell, tell } from "./model";
import { type Palette, readPalette } from "./palette";
import { Tooltip } from "./tooltip";

export interface StripCell {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** From this width on a cell is easy to see and to hit. */
const GOOD = 8;
const LARGEST = 28;
const MOST_ROWS = 16;

/** Cells of nodes with so many GPUs each, in columns over the whole width; a node never shares a column with another. */
export function stripCells(counts: readonly number[], width: number): { cells: StripCell[]; height: number } {
  let rows = 1;
  let pitch = 0;
  for (; ; rows *= 2) {
    const needed = counts.reduce((sum, count) => sum + Math.ceil(count / rows), 0);
    pitch = Math.min(LARGEST, width / Math.max(1, needed));
    if (pitch >= (rows < 8 ? GOOD : 3) || rows >= MOST_ROWS) break;
  }
  const tall = rows === 1 ? 20 : Math.max(4, Math.min(12, Math.round(pitch)));
  const cells: StripCell[] = [];
  let column = 0;
  for (const count of counts) {
    for (let at = 0; at < count; at += 1) {
      const here = column + Math.floor(at / rows);
      const x = Math.round(here * pitch);
      const isLastOfNode = here === column + Math.ceil(count / rows) - 1;
      // Between nodes there is a little more room where there is room at all.
      const gap = isLastOfNode && pitch >= 12 ? 4 : 1;
      cells.push({ x, y: (at % rows) * tall, width: Math.max(2, Math.round((here + 1) * pitch) - x - gap), height: tall - 1 });
    }
    column += Math.ceil(count / rows);
  }
  return { cells, height: rows * tall - 1 };
}

function fill(context: CanvasRenderingContext2D, { x, y, width, height }: StripCell, cell: Cell, colours: Palette): void {
  context.fillStyle = cell === "busy" ? colours.busy : cell === "held_idle" ? colours.heldIdle : colours.free;
  if (cell !== "unavailable") context.fillRect(x, y, width, height);
  if (cell === "held_idle") {
    // A half, as the mark of the state has it.
    context.fillStyle = colours.free;
    context.fillRect(x + Math.ceil(width / 2), y + 1, Math.floor(width / 2) - 1, height - 2);
  } else if (cell === "unavailable") {
    context.strokeStyle = colours.unavailable;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    context.beginPath();
    context.moveTo(x, y + height);
    context.lineTo(x + width, y);
    context.stroke();
  }
}

export const overviewStrip: MakeView = (region) => {
  const canvas = h("canvas");
  const link = h("a", { class: "strip-link", href: "/fleet/" }, canvas);
  const tooltip = new Tooltip();
  const none = whenEmpty(region, noNodes);
  let shown: FleetCell[] = [];
  let where: StripCell[] = [];
  let colours = readPalette(region);

  const paint = (): void => {
    const context = canvas.getContext("2d");
    if (context === null) return;
    const ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    shown.forEach(({ device }, at) => where[at] && fill(context, where[at], device.cell, colours));
  };
  const arrange = (): void => {
    const counts = new Map<string, number>();
    for (const { node } of shown) counts.set(node.name, (counts.get(node.name) ?? 0) + 1);
    const width = Math.max(1, region.clientWidth);
    const { cells, height } = stripCells([...counts.values()], width);
    where = cells;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.cssText = `width: ${width}px; height: ${height}px`;
    paint();
  };
  const pointed = (event: MouseEvent): number => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return where.findIndex((cell) => x >= cell.x && x <= cell.x + cell.width && y >= cell.y && y <= cell.y + cell.height);
  };
  canvas.addEventListener("pointermove", (event) => {
    const at = pointed(event);
    const [cell, box] = [shown[at], where[at]];
    if (cell === undefined || box === undefined) return tooltip.hide();
    const from = canvas.getBoundingClientRect();
    tooltip.show(tell(cell), from.left + box.x, from.top + box.y, box.width);
  });
  canvas.addEventListener("pointerleave", () => tooltip.hide());
  link.addEventListener("click", (event) => {
    const cell = shown[pointed(event)];
    link.href = cell === undefined ? "/fleet/" : `/fleet/?gpu=${encodeURIComponent(`${cell.node.name}/${cell.device.index}`)}`;
  });
  const watcher = new ResizeObserver(() => shown.length > 0 && canvas.isConnected && arrange());
  watcher.observe(region);

  return {
    draw(state) {
      const nodes = ([...state.rows.values()] as NodeRow[]).sort((a, b) => byName(a.name, b.name));
      if (nodes.length === 0) return region.replaceChildren(none());
      shown = nodes.flatMap((node) => node.devices.map((device) => ({ node, device })));
      if (link.parentElement !== region) region.replaceChildren(link);
      const words = CELLS.map((cell) => `${shown.filter(({ device }) => device.cell === cell).length} ${CELL_WORDS[cell]}`);
      link.setAttribute("aria-label", `${plural(shown.length, "GPU")}: ${words.join(", ")}. Open the fleet`);
      arrange();
    },
    restyle() {
      colours = readPalette(region);
      paint();
    },
    close() {
      watcher.disconnect();
      tooltip.close();
    },
  };
};

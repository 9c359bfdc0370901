// The strip of the fleet on the Overview: a cell per GPU, by node.
import { h, plural, refill } from "../../ui/dom";
import type { MakeView } from "../../live/regions";
import type { Cell, NodeRow, StripRow } from "../../live/topics";
import { CELLS, CELL_WORDS, byName, empty, whenEmpty } from "../../ui/pieces";
import { describeCell, gpuName } from "./model";
import { type Palette, readPalette } from "./palette";
import { Tooltip } from "./tooltip";

export interface StripCell {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** A comfortable cell width, and the minimum. */
const GOOD = 8;
const LEAST = 3;
const LARGEST = 64;
const MAX_ROWS = 8;

/** Lay out the cells of nodes in columns over the width, in several bands if needed;
 * a node never shares a column with another. */
export function stripCells(counts: readonly number[], width: number): { cells: StripCell[]; height: number } {
  const needed = (rows: number): number => Math.max(1, counts.reduce((sum, count) => sum + Math.ceil(count / rows), 0));
  let rows = 1;
  while (rows < MAX_ROWS && width / needed(rows) < GOOD) rows *= 2;
  const bands = Math.max(1, Math.ceil((LEAST * needed(rows)) / width));
  const across = Math.ceil(needed(rows) / bands);
  const pitch = Math.min(LARGEST, width / across);
  const tall = rows === 1 ? 20 : Math.max(4, Math.min(12, Math.round(pitch)));
  const cells: StripCell[] = [];
  let column = 0;
  for (const count of counts) {
    const last = column + Math.ceil(count / rows) - 1;
    for (let at = 0; at < count; at += 1) {
      const cellColumn = column + Math.floor(at / rows);
      const x = Math.round((cellColumn % across) * pitch);
      // Leave more space between nodes if the width allows.
      const gap = cellColumn === last && pitch >= 12 ? 4 : 1;
      const y = (at % rows) * tall + Math.floor(cellColumn / across) * (rows * tall + 3);
      cells.push({ x, y, width: Math.max(2, Math.round(((cellColumn % across) + 1) * pitch) - x - gap), height: tall - 1 });
    }
    column = last + 1;
  }
  return { cells, height: Math.max(0, ...cells.map((cell) => cell.y + cell.height)) };
}

function fill(context: CanvasRenderingContext2D, { x, y, width, height }: StripCell, cell: Cell, colours: Palette): void {
  context.fillStyle = cell === "busy" ? colours.busy : cell === "held_idle" ? colours.heldIdle : colours.free;
  if (cell !== "unavailable") context.fillRect(x, y, width, height);
  if (cell === "held_idle") {
    // A half square, like the symbol of the state.
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

interface Place {
  node: string;
  /** Its name in the URL of the Fleet. */
  name: string;
  /** The position among the devices of the node. A lost GPU and its replacement share an index. */
  at: number;
  index: number;
  cell: Cell;
}

function places(node: string, { indexes, cells }: StripRow): Place[] {
  return cells.map((cell, at) => {
    const index = indexes[at] ?? 0;
    return { node, name: gpuName(node, index, indexes.slice(0, at).filter((each) => each === index).length), at, index, cell };
  });
}

export const overviewStrip: MakeView = (region, { hub }) => {
  const canvas = h("canvas");
  const link = h("a", { class: "strip-link", href: "/fleet/" }, canvas);
  const tooltip = new Tooltip();
  const none = whenEmpty(region);
  let visible: Place[] = [];
  let boxes: StripCell[] = [];
  let stop: (() => void) | undefined;
  let colours = readPalette(region);

  const paint = (): void => {
    const context = canvas.getContext("2d");
    if (context === null) return;
    const ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    visible.forEach(({ cell }, at) => boxes[at] && fill(context, boxes[at], cell, colours));
  };
  const arrange = (): void => {
    const counts = new Map<string, number>();
    for (const { node } of visible) counts.set(node, (counts.get(node) ?? 0) + 1);
    const width = Math.max(1, region.clientWidth);
    const { cells, height } = stripCells([...counts.values()], width);
    boxes = cells;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.cssText = `width: ${width}px; height: ${height}px`;
    paint();
  };
  const pointed = (event: MouseEvent): number => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return boxes.findIndex((cell) => x >= cell.x && x <= cell.x + cell.width && y >= cell.y && y <= cell.y + cell.height);
  };
  /** The details of the nodes are a large topic, loaded when the pointer first needs them. */
  const describe = ({ node: name, at, index, cell }: Place): string[] => {
    stop ??= hub.listen("nodes", () => undefined);
    const node = hub.state("nodes").rows.get(name) as NodeRow | undefined;
    const device = node?.devices[at];
    return node && device ? describeCell({ node, device }) : [`${name} · GPU ${index}`, CELL_WORDS[cell]];
  };
  canvas.addEventListener("pointermove", (event) => {
    const at = pointed(event);
    const [place, box] = [visible[at], boxes[at]];
    if (place === undefined || box === undefined) return tooltip.hide();
    const from = canvas.getBoundingClientRect();
    tooltip.show(describe(place), from.left + box.x, from.top + box.y, box.width);
  });
  canvas.addEventListener("pointerleave", () => tooltip.hide());
  link.addEventListener("click", (event) => {
    const place = visible[pointed(event)];
    link.href = place === undefined ? "/fleet/" : `/fleet/?gpu=${encodeURIComponent(place.name)}`;
  });
  const watcher = new ResizeObserver(() => visible.length > 0 && canvas.isConnected && arrange());
  watcher.observe(region);

  return {
    draw(state) {
      const nodes = ([...state.rows] as [string, StripRow][]).sort(([a], [b]) => byName(a, b));
      visible = nodes.flatMap(([node, row]) => places(node, row));
      if (nodes.length === 0) return refill(region, none());
      if (visible.length === 0) return refill(region, empty("No node has a GPU. Jobs that request none can run."));
      if (link.parentElement !== region) region.replaceChildren(link);
      const words = CELLS.map((cell) => `${visible.filter((place) => place.cell === cell).length} ${CELL_WORDS[cell]}`);
      link.setAttribute("aria-label", `${plural(visible.length, "GPU")}: ${words.join(", ")}. Open the fleet`);
      arrange();
    },
    restyle() {
      colours = readPalette(region);
      paint();
    },
    close() {
      watcher.disconnect();
      tooltip.close();
      stop?.();
    },
  };
};

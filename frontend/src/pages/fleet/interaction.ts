// Pointer and keys on the fleet canvas.
import { type Layout, hit, neighbour } from "./layout";

export interface FleetEvents {
  layout(): Layout;
  /** The pointed or focused cell has changed; -1: none. */
  pointed(cell: number): void;
  opened(cell: number): void;
  /** Escape: clear the selection. */
  left(): void;
}

const STEPS: Record<string, readonly [number, number]> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};

export function interact(canvas: HTMLCanvasElement, events: FleetEvents): void {
  let current = -1;
  const point = (cell: number, byKeyboard: boolean): void => {
    if (cell === current && !byKeyboard) return;
    current = cell;
    events.pointed(cell);
  };
  const at = (event: MouseEvent): number => {
    const box = canvas.getBoundingClientRect();
    return hit(events.layout(), event.clientX - box.left, event.clientY - box.top);
  };
  canvas.addEventListener("pointermove", (event) => {
    const cell = at(event);
    canvas.style.cursor = cell >= 0 ? "pointer" : "";
    point(cell, false);
  });
  canvas.addEventListener("pointerleave", () => point(-1, false));
  canvas.addEventListener("click", (event) => {
    const cell = at(event);
    if (cell >= 0) events.opened(cell);
  });
  canvas.addEventListener("focus", () => {
    if (canvas.matches(":focus-visible")) point(Math.max(current, 0), true);
  });
  canvas.addEventListener("blur", () => point(-1, true));
  canvas.addEventListener("keydown", (event) => {
    const cells = events.layout().cells.length;
    const step = STEPS[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || cells === 0) return;
    if (step !== undefined) point(neighbour(events.layout(), current, ...step), true);
    else if (event.key === "Home") point(0, true);
    else if (event.key === "End") point(cells - 1, true);
    else if (event.key === "Enter" && current >= 0) events.opened(current);
    else if (event.key === "Escape") {
      current = -1;
      events.left();
    }
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

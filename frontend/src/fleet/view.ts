// The fleet's region: joins rows, layout, canvas, controls, tooltip and table.
import { h, plural } from "../dom";
import type { MakeView } from "../regions";
import type { NodeRow } from "../topics";
import { jobHref, noNodes, nodeHref, whenEmpty } from "../views/pieces";
import { interact } from "./interaction";
import { FILLS, type Fill } from "./looks";
import { type Layout, layout } from "./layout";
import { type Grouping, type Model, model, paints, tell, type Spotlight } from "./model";
import { type CellPaint, type Context, paint, paintFocus } from "./paint";
import { readPalette } from "./palette";
import { FleetTable } from "./table";
import { Tooltip } from "./tooltip";

const LEAST_HEIGHT = 320;

function control(name: string): HTMLSelectElement | null {
  return document.querySelector<HTMLSelectElement>(`select[data-fleet-${name}]`);
}

function spotlight(): Spotlight {
  const asked = new URLSearchParams(location.search);
  const job = Number(asked.get("job"));
  return { cell: asked.get("cell") || null, job: job > 0 ? job : null, tenant: asked.get("tenant") || null };
}

export const fleet: MakeView = (region) => {
  const canvas = region.querySelector("canvas") ?? h("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "map of GPUs");
  const tooltip = new Tooltip();
  const table = new FleetTable();
  const none = whenEmpty(region, noNodes);
  const light = spotlight();
  const [group, fill] = [control("group"), control("fill")];
  const toggle = document.querySelector<HTMLElement>("[data-fleet-table]");
  let nodes: NodeRow[] = [];
  let shown: Model = { groups: [], cells: [] };
  let where: Layout = layout([], 1, 1);
  let drawn: CellPaint[] = [];
  let palette = readPalette(region);
  let [pointed, width, height] = [-1, 0, 0];
  let isTable = false;

  const way = (): Fill => FILLS.find((each) => each === fill?.value) ?? "state";

  const redraw = (): void => {
    const context = canvas.getContext("2d");
    if (context === null || isTable) return;
    const ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(context as Context, where, drawn, palette, width, height);
    if (pointed >= 0) paintFocus(context as Context, where, pointed, palette);
  };

  const recolour = (): void => {
    drawn = paints(shown.cells, way(), light);
    redraw();
  };

  const arrange = (): void => {
    if (isTable) return;
    width = Math.max(200, Math.floor(region.clientWidth));
    const top = region.getBoundingClientRect().top + scrollY;
    where = layout(shown.groups, width, Math.max(LEAST_HEIGHT, innerHeight - top - 24));
    height = Math.ceil(where.height) + 2;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    recolour();
  };

  const refresh = (): void => {
    const before = shape(shown);
    shown = model(nodes, (group?.value as Grouping | undefined) ?? "none");
    canvas.setAttribute("aria-label", `${plural(shown.cells.length, "GPU")} on ${plural(nodes.length, "node")}; arrow keys move, Enter opens`);
    if (isTable) table.update(shown.cells);
    else if (before === shape(shown) && width > 0) recolour();
    else arrange();
  };

  const point = (cell: number): void => {
    pointed = cell;
    redraw();
    const [box, what] = [where.cells[cell], shown.cells[cell]];
    if (box === undefined || what === undefined) return tooltip.hide();
    const at = canvas.getBoundingClientRect();
    tooltip.show(tell(what), at.left + box.x, at.top + box.y, where.size);
  };

  const open = (cell: number): void => {
    const what = shown.cells[cell];
    if (what === undefined) return;
    const job = what.device.jobs?.[0];
    location.assign(job === undefined ? nodeHref(what.node.name) : jobHref(job));
  };

  const switchTable = (): void => {
    isTable = !isTable;
    toggle?.setAttribute("aria-pressed", String(isTable));
    tooltip.hide();
    region.replaceChildren(isTable ? table.element : canvas);
    if (isTable) table.update(shown.cells);
    else arrange();
  };

  interact(canvas, { layout: () => where, pointed: point, opened: open });
  const watcher = new ResizeObserver(() => {
    if (nodes.length > 0 && region.clientWidth !== width) arrange();
  });
  watcher.observe(region);
  group?.addEventListener("change", refresh);
  fill?.addEventListener("change", recolour);
  toggle?.addEventListener("click", switchTable);

  return {
    draw(state) {
      nodes = [...state.rows.values()] as NodeRow[];
      if (nodes.length === 0) {
        tooltip.hide();
        return region.replaceChildren(none());
      }
      const body = isTable ? table.element : canvas;
      if (body.parentElement !== region || region.childNodes.length !== 1) region.replaceChildren(body);
      refresh();
      if (pointed >= 0 && !isTable) point(pointed);
    },
    restyle() {
      palette = readPalette(region);
      redraw();
    },
    close() {
      watcher.disconnect();
      tooltip.close();
      group?.removeEventListener("change", refresh);
      fill?.removeEventListener("change", recolour);
      toggle?.removeEventListener("click", switchTable);
    },
  };
};

/** Equal for two models that are laid out alike. */
function shape(of: Model): string {
  return of.groups.map((group) => `${group.title}:${group.nodes.map((node) => `${node.name}=${node.cells}`).join()}`).join(";");
}

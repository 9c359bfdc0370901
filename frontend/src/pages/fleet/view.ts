// The fleet's region: joins rows, address, layout, canvas, controls, legend, panel, tooltip and table.
import { h, plural, refill } from "../../ui/dom";
import type { MakeView } from "../../live/regions";
import type { NodeRow } from "../../live/topics";
import { empty, whenEmpty } from "../../ui/pieces";
import { type Address, type Spotlight, readAddress, writeAddress } from "./address";
import { Chart } from "./chart";
import { interact } from "./interaction";
import { showLegend } from "./legend";
import { type Model, model, nameOf, paints, describeCell } from "./model";
import { Panel } from "./panel";
import { FleetTable } from "./table";
import { Tooltip } from "./tooltip";

/** Pixels of the panel that must be visible. */
const MIN_OF_PANEL = 160;
const DARK: Spotlight = { cell: null, job: null, tenant: null };

function control(name: string): HTMLSelectElement | null {
  return document.querySelector<HTMLSelectElement>(`select[data-fleet-${name}]`);
}

export const fleet: MakeView = (region) => {
  const chart = new Chart(region);
  const tooltip = new Tooltip();
  const table = new FleetTable(
    (gpu) => choose(gpu),
    () => recolour(),
    (sort) => change({ sort }),
  );
  const none = whenEmpty(region);
  const [group, fill] = [control("group"), control("fill")];
  const toggle = document.querySelector<HTMLElement>("[data-fleet-table]");
  const beside = document.querySelector("[data-fleet-panel]");
  const legend = document.querySelector("[data-fleet-legend]");
  const panel = beside === null ? null : new Panel(beside, { light: (light) => change({ light: { ...DARK, ...light } }), closed: shut });
  const isLinked = group !== null;
  let now: Address = readAddress(location.search);
  let nodes: NodeRow[] = [];
  let current: Model = { groups: [], cells: [] };
  let pointed = -1;
  let addressTimer: ReturnType<typeof setTimeout> | undefined;
  let isStep = false;
  /** The scroll position before the page scrolled to the panel, or null. */
  let scrollBefore: number | null = null;

  const chosen = (): number => (now.gpu === null ? -1 : current.cells.findIndex((cell) => nameOf(cell) === now.gpu));

  const recolour = (): void => {
    if (legend !== null) showLegend(legend, now.fill, current.cells);
    if (now.isTable) table.update(current, now.light, now.gpu, now.sort);
    else chart.recolour(paints(current.cells, now.fill, now.light, now.gpu), pointed);
    panel?.show(current.cells[chosen()], current.cells, now.light, now.gpu);
  };

  const refresh = (): void => {
    current = model(nodes, now.group);
    chart.label(`${plural(current.cells.length, "GPU")} on ${plural(nodes.length, "node")}; arrow keys move, Enter selects, t shows a table`);
    // The map fills the height below the legend.
    if (legend !== null) showLegend(legend, now.fill, current.cells);
    if (!now.isTable) chart.arrange(current.groups);
    recolour();
  };

  const place = (): void => {
    const body = now.isTable ? table.element : chart.canvas;
    if (body.parentElement !== region || region.childNodes.length !== 1) region.replaceChildren(body);
    toggle?.setAttribute("aria-pressed", String(now.isTable));
  };

  /** After the frame: a history update takes longer than painting all cells. */
  const writeAddressLater = (): void => {
    addressTimer ??= setTimeout(() => {
      addressTimer = undefined;
      const address = `${location.pathname}${writeAddress(now, location.search)}`;
      if (isStep) history.pushState(null, "", address);
      else history.replaceState(null, "", address);
      isStep = false;
    });
  };

  /** All changes go through here, so that the URL always matches the view. */
  function change(to: Partial<Address>): void {
    now = { ...now, ...to };
    if (isLinked) writeAddressLater();
    if (group !== null) group.value = now.group;
    if (fill !== null) fill.value = now.fill;
    if (current.cells.length === 0) return;
    tooltip.hide();
    place();
    // A change of colours needs no layout.
    if (to.group === undefined && to.isTable === undefined) recolour();
    else refresh();
  }

  const point = (cell: number): void => {
    pointed = cell;
    chart.focus(pointed);
    const target = current.cells[cell];
    const box = chart.boxOf(cell);
    if (box === null || target === undefined) return tooltip.hide();
    tooltip.show(describeCell(target), box.left, box.top, box.size);
  };

  const open = (cell: number): void => {
    const target = current.cells[cell];
    if (target !== undefined) choose(nameOf(target));
  };

  /** Select a GPU as a history step, and scroll to the panel if it is off screen. */
  function choose(gpu: string): void {
    isStep ||= now.gpu === null;
    change({ gpu });
    if (beside === null || beside.getBoundingClientRect().top < innerHeight - MIN_OF_PANEL) return;
    scrollBefore ??= scrollY;
    beside.scrollIntoView();
  }

  const wentBack = (): void => {
    // Drop the pending URL of the page that was left.
    clearTimeout(addressTimer);
    addressTimer = undefined;
    change(readAddress(location.search));
    goBackUp();
  };

  function goBackUp(): void {
    if (scrollBefore !== null && now.gpu === null) scrollTo({ top: scrollBefore });
    if (now.gpu === null) scrollBefore = null;
  }

  const leave = (): void => {
    if (pointed >= 0) point(-1);
    if (now.gpu !== null || now.light.job !== null) change({ gpu: null, light: { ...now.light, job: null } });
  };

  /** Close the panel and focus its GPU. */
  function shut(): void {
    const row = now.gpu === null ? null : table.rowOf(now.gpu);
    change({ gpu: null });
    (now.isTable ? (row ?? toggle) : chart.canvas)?.focus({ preventScroll: true });
    goBackUp();
  }

  const keyed = (event: KeyboardEvent): void => {
    const isElsewhere = event.target instanceof HTMLElement && event.target.matches("input, select, textarea, dialog *");
    if (event.key !== "t" || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isElsewhere) return;
    change({ isTable: !now.isTable });
  };

  interact(chart.canvas, { layout: () => chart.placed, pointed: point, opened: open, left: leave });
  const watcher = new ResizeObserver(() => nodes.length > 0 && !now.isTable && chart.isOtherWidth() && refresh());
  watcher.observe(region);
  const grouped = (): void => change({ group: (group?.value ?? "none") as Address["group"] });
  const filled = (): void => change({ fill: (fill?.value ?? "state") as Address["fill"] });
  const switched = (): void => change({ isTable: !now.isTable });
  group?.addEventListener("change", grouped);
  fill?.addEventListener("change", filled);
  toggle?.addEventListener("click", switched);
  document.addEventListener("keydown", keyed);
  if (isLinked) addEventListener("popstate", wentBack);
  change({});

  return {
    draw(state) {
      nodes = [...state.rows.values()] as NodeRow[];
      const isBare = nodes.every((node) => node.devices.length === 0);
      if (nodes.length === 0 || isBare) {
        tooltip.hide();
        current = model(nodes, now.group);
        panel?.show(undefined, [], now.light, now.gpu);
        return refill(region, isBare && nodes.length > 0 ? empty("No node has a GPU. Jobs that request none can run. ", h("a", { href: "/nodes/" }, "The nodes"), ".") : none());
      }
      place();
      refresh();
      if (pointed >= 0 && !now.isTable) point(pointed);
    },
    restyle() {
      chart.restyle();
      if (nodes.length > 0) recolour();
    },
    close() {
      watcher.disconnect();
      tooltip.close();
      panel?.close();
      group?.removeEventListener("change", grouped);
      fill?.removeEventListener("change", filled);
      toggle?.removeEventListener("click", switched);
      document.removeEventListener("keydown", keyed);
      removeEventListener("popstate", wentBack);
    },
  };
};

// The panel beside the map: the selected GPU with its node and jobs, or a summary of the fleet.
import { Actions } from "../../actions/buttons";
import { type Child, h, na, plural } from "../../ui/dom";
import { morphChildren } from "../../ui/morph";
import { badge } from "../../ui/states";
import { duration, serverNow } from "../../ui/time";
import { byName, jobHref, jobLink, mib, named, nodeHref, nodeLink, shortModel, tenantLink } from "../../ui/pieces";
import { type Spotlight, fits, isPlain, describeSpotlight } from "./address";
import { type Fill, OTHERS, whyUnknown, idleFor, appearance, owner, formatReading } from "./looks";
import type { FleetCell } from "./model";

/** The maximum of named nodes; the rest is counted. */
const MAX_NAMED = 4;

export interface PanelEvents {
  /** Highlight the GPUs of a job; empty: show all. */
  light(light: Partial<Spotlight>): void;
  closed(): void;
}

export class Panel {
  private readonly facts = h("div", { class: "panel-facts" });
  private readonly actions = new Actions();

  constructor(box: Element, events: PanelEvents) {
    box.replaceChildren(this.facts, this.actions.element);
    // Redraws keep elements and focus, so listen here: data attributes name the action.
    this.facts.addEventListener("click", (event) => {
      const button = event.target instanceof Element ? event.target.closest<HTMLElement>("button[data-does]") : null;
      if (button?.dataset.does === "close") events.closed();
      else if (button?.dataset.does === "light") events.light({ job: Number(button.dataset.job) });
      else if (button !== null) events.light({});
    });
  }

  /** `asked`: the GPU that the address names, there or not. */
  show(chosen: FleetCell | undefined, cells: readonly FleetCell[], light: Spotlight, requestedGpu: string | null): void {
    const missing = chosen === undefined && requestedGpu !== null && h("p", { class: "note amber", role: "status" }, `GPU ${requestedGpu} does not exist, or no longer does.`);
    const content = h("div", {}, isPlain(light) ? null : lit(cells, light), missing, ...(chosen === undefined ? fleet(cells) : gpu(chosen, cells)));
    morphChildren(this.facts, content);
    this.actions.show(chosen === undefined ? "" : `/nodes/${encodeURIComponent(chosen.node.name)}/gpus/${chosen.device.id}/actions/`, actionsDependOn(chosen));
  }

  close(): void {
    this.actions.close();
  }
}

/** The state on which the actions depend. */
function actionsDependOn(cell: FleetCell | undefined): string {
  return cell === undefined ? "" : JSON.stringify([cell.node.state, cell.node.intent, cell.node.intent_note, cell.node.jobs, cell.device.health, cell.device.jobs]);
}

function lit(cells: readonly FleetCell[], light: Spotlight): HTMLElement {
  const all = h("button", { type: "button", class: "small", "data-does": "all" }, "Show all");
  return h("p", { class: "lit" }, h("span", {}, `Highlighted: ${describeSpotlight(light)}: ${counted(cells.filter((cell) => fits(cell, light)))}`), all);
}

/** Describe the matching GPUs and their nodes. Free GPUs slowed down by heat take no jobs. */
function counted(cells: readonly FleetCell[]): string {
  if (cells.length === 0) return "none now";
  const slowed = cells.filter(({ device }) => device.cell === "free" && device.is_slowed).length;
  const names = [...new Set(cells.map(({ node }) => node.name))];
  const places = names.length <= MAX_NAMED ? names.join(", ") : `${names.length} nodes`;
  return `${plural(cells.length, "GPU")} on ${places}${slowed > 0 ? `, ${slowed} of them too hot to take new jobs` : ""}`;
}

function gpu(cell: FleetCell, cells: readonly FleetCell[]): Child[] {
  const { node, device } = cell;
  const { kind, words } = appearance(device, node);
  const close = h("button", { type: "button", class: "icon-button", "aria-label": "Close", title: "Close (Esc)", "data-does": "close" }, "✕");
  const read = (fill: Fill, more = ""): Child => {
    const text = node.state === "lost" ? "n/a" : formatReading(device, fill, node);
    return text === "n/a" ? na(whyUnknown(device, node, fill).replace("n/a: ", "")) : text + more;
  };
  const facts: [string, Child][] = [
    ["Utilisation", read("utilisation")],
    ["Memory", read("memory", device.memory_mb === null ? "" : ` of ${mib(device.memory_mb)}`)],
    ["Temperature", read("temperature")],
    ["Power", read("power")],
    ["Time to free", read("until")],
  ];
  return [
    h("div", { class: "panel-head" }, h("h2", { "aria-live": "polite" }, nodeLink(node.name), ` GPU ${device.index}`), close),
    h("p", {}, badge(kind, words + idleFor(device))),
    h("p", { class: "muted small" }, shortModel(device.model)),
    h("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    ...jobs(cell, cells),
    h("h3", {}, "Node"),
    h("p", {}, badge(node.state), " ", node.intent !== "open" && badge(node.intent), node.intent_note && h("span", { class: "muted" }, ` ${node.intent_note}`)),
    h("p", { class: "actions" }, h("a", { class: "button small", href: nodeHref(node.name) }, "Open node"), h("span", { class: "muted small" }, "readings, history")),
  ];
}

function jobs(cell: FleetCell, cells: readonly FleetCell[]): Child[] {
  const { node, device } = cell;
  const ids = device.jobs ?? [];
  if (ids.length === 0) return owner(device, node) === OTHERS ? [h("h3", {}, "Job"), h("p", { class: "muted" }, "Held by another tenant.")] : [];
  return [h("h3", {}, ids.length === 1 ? "Job" : "Jobs"), ...ids.map((id) => job(id, cell, cells))];
}

function job(id: number, { node }: FleetCell, cells: readonly FleetCell[]): HTMLElement {
  const holder = node.holders?.[id];
  const gpuCount = cells.filter(({ device }) => (device.jobs ?? []).includes(id)).length;
  const light = h("button", { type: "button", class: "small", "data-does": "light", "data-job": id }, gpuCount === 1 ? "Highlight it" : `Highlight its ${gpuCount} GPUs`);
  const secondsLeft = holder?.ends_at ? (Date.parse(holder.ends_at) - serverNow()) / 1000 : null;
  return h(
    "div",
    { class: "panel-job" },
    h("p", {}, jobLink(id, holder?.name || `job ${id}`), " ", h("span", { class: "id muted" }, `#${id}`)),
    holder && h("p", { class: "muted" }, named(holder.user), " · ", tenantLink(holder.tenant), " · ", secondsLeft === null ? "no time limit" : `ends within ${duration(secondsLeft)}`),
    h("p", { class: "actions" }, light, h("a", { class: "button small", href: jobHref(id) }, "Open job")),
  );
}

function fleet(cells: readonly FleetCell[]): Child[] {
  if (cells.length === 0) return [h("h2", {}, "No GPUs")];
  const models = new Map<string, FleetCell[]>();
  for (const cell of cells) {
    const name = shortModel(cell.device.model);
    const members = models.get(name);
    if (members === undefined) models.set(name, [cell]);
    else members.push(cell);
  }
  const rows = [...models].sort(([a], [b]) => byName(a, b)).map(([name, modelCells]) => {
    const count = (cell: string): number => modelCells.filter(({ device }) => device.cell === cell).length;
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "num" }, modelCells.length), h("td", { class: "num" }, count("busy") + count("held_idle")), h("td", { class: "num" }, count("free")));
  });
  const heads = ["Model", "GPUs", "Held", "Free"].map((name, at) => h("th", { scope: "col", class: at > 0 ? "num" : null }, name));
  return [
    h("h2", {}, plural(cells.length, "GPU")),
    h("table", { class: "panel-models" }, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...rows)),
    h("p", { class: "muted small" }, "Select a GPU to see its jobs, their owners and when they end.", h("span", { class: "of-keys" }, " Arrow keys move between GPUs, Enter selects, t shows a table.")),
  ];
}

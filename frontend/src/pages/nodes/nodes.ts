// The table of nodes, grouped by what an admin must do: state, devices, problems and free resources.
import { type Child, h, na, refill } from "../../ui/dom";
import type { MakeView } from "../../live/regions";
import { type Line, LiveTable } from "../../ui/rows";
import { NODE_GROUPS } from "../../ui/constants";
import { badge, glyph } from "../../ui/states";
import { ago } from "../../ui/time";
import type { DeviceRow, NodeRow } from "../../live/topics";
import { appearance } from "../fleet/looks";
import { CELL_CLASS, byName, empty, jobLink, mib, nameRow, nodeHref, orUnknown, shortModel, whenEmpty } from "../../ui/pieces";

/** The state, and the intent if it is not open. */
function stateCell(node: NodeRow): Child[] {
  const wish = node.intent !== "open" ? badge(node.intent) : null;
  const note = node.intent_note ? h("span", { class: "muted" }, node.intent_note) : null;
  return [badge(node.state), wish && " ", wish, note && " ", note];
}

function cell(device: DeviceRow, node: NodeRow): HTMLElement {
  const { kind, words } = appearance(device, node);
  const title = `GPU ${device.index} ${device.model}: ${words}`;
  return h("span", { class: `cell ${CELL_CLASS[kind === "unknown" ? "unavailable" : device.cell]} is-${kind}`, title }, h("i", { "aria-hidden": "true" }, glyph(kind)));
}

function devices(node: NodeRow): Child[] {
  if (node.devices.length === 0) return [h("span", { class: "muted" }, "none")];
  const models = [...new Set(node.devices.map((device) => shortModel(device.model)))].join(", ");
  const label = node.devices.map((device) => `GPU ${device.index} ${appearance(device, node).words}`).join(", ");
  const strip = h("span", { class: "strip small-strip", role: "img", "aria-label": label }, ...node.devices.map((device) => cell(device, node)));
  return [strip, h("span", { class: "muted small" }, models), ...node.devices.filter(isUnwell).map(healthNote)];
}

const isUnwell = (device: DeviceRow): boolean => device.health !== "ok";

function healthNote(device: DeviceRow): HTMLElement {
  const note = device.health_note ? `: ${device.health_note}` : "";
  return h("span", { class: "health-note" }, badge(device.health), ` GPU ${device.index}${note}`);
}

type NodeGroup = (typeof NODE_GROUPS)[number][0];

/** The group of a node; the URL can select one (?group=attention). */
export function nodeGroup(node: NodeRow): NodeGroup {
  if (node.state !== "online" || node.devices.some(isUnwell)) return "attention";
  return node.intent === "open" ? "open" : "closed";
}

/** Group headings, unless there is one group, and nodes by name. */
export function groupedNodes(rows: readonly NodeRow[]): Line<NodeRow>[] {
  const groups = NODE_GROUPS.map(([key, label]) => [key, label, rows.filter((row) => nodeGroup(row) === key)] as const).filter(([, , members]) => members.length > 0);
  return groups.flatMap(([key, label, members]): Line<NodeRow>[] => {
    const lines = [...members].sort((a, b) => byName(a.name, b.name)).map((row) => ({ key: row.name, row }));
    return groups.length > 1 ? [{ key: `group:${key}`, heading: `${label} · ${members.length}` }, ...lines] : lines;
  });
}

function jobsCell(node: NodeRow): Child[] {
  const ids = node.jobs ?? [];
  if (ids.length === 0) return [];
  return ids.slice(0, 8).flatMap((id, at) => [at > 0 ? " " : null, jobLink(id)]).concat(ids.length > 8 ? [` +${ids.length - 8}`] : []);
}

/** A lost node has no free resources. */
const share = ({ state }: NodeRow, free: number | null, all: number | null, show: (value: number) => string): Child =>
  state === "lost" ? na("the node is lost: no job can start on it")
  : free === null || all === null ? orUnknown(null, "the node has not reported it") : h("span", {}, show(free), h("span", { class: "muted" }, ` / ${show(all)}`));

const tidy = (value: number): string => String(Math.round(value * 100) / 100);

function nameCell(node: NodeRow): Child[] {
  const runtimes = Object.entries(node.runtimes ?? {}).map(([name, version]) => `${name} ${version}`);
  const host = node.hostname !== node.name && node.hostname;
  const title = [node.name, host, node.driver_version && `driver ${node.driver_version}`, ...runtimes].filter(Boolean).join(", ");
  return [
    h("a", { href: nodeHref(node.name), class: "node", title }, h("b", {}, node.name)),
    node.pretend && " ",
    node.pretend && h("span", { class: "tag tag-pretend", title: "simulated: it has no real GPU" }, "pretend"),
  ];
}

export const nodes: MakeView = (region) => {
  const none = whenEmpty(region);
  const table = new LiveTable<NodeRow>(
    [
      { label: "Node", cell: nameCell, className: "title" },
      { label: "State", cell: stateCell, className: "is" },
      { label: "GPUs", cell: devices, className: "gpus" },
      { label: "CPU cores free", cell: (node) => share(node, node.cpu_cores_free, node.cpu_cores, tidy), className: "num" },
      { label: "Memory free", cell: (node) => share(node, node.memory_mb_free, node.memory_mb, mib), className: "num" },
      { label: "Jobs", cell: jobsCell },
      { label: "Agent", cell: (node) => orUnknown(node.agent_version, "its agent has not reported it"), className: "agent muted" },
      { label: "Seen", cell: (node) => ago(node.last_seen_at), className: "nowrap" },
    ],
    (tr, node) => {
      nameRow(tr, node.name, region);
      tr.dataset.state = node.state;
      tr.dataset.href = nodeHref(node.name);
    },
    "rows nodes",
  );
  const asked = new URLSearchParams(location.search).get("group");
  const group = NODE_GROUPS.find(([key]) => key === asked)?.[0] ?? null;
  return {
    draw(state) {
      const all = [...state.rows.values()] as NodeRow[];
      if (all.length === 0) return refill(region, none());
      showCounts(all);
      const rows = all.filter((node) => group === null || nodeGroup(node) === group);
      if (rows.length === 0) return refill(region, empty("No nodes are in this group."));
      table.update(groupedNodes(rows));
      if (table.element.parentElement !== region) region.replaceChildren(table.element);
    },
  };
};

/** Show the node counts of the groups. */
function showCounts(rows: readonly NodeRow[]): void {
  for (const place of document.querySelectorAll<HTMLElement>("[data-node-count]")) {
    const group = place.dataset.nodeCount;
    place.textContent = String(group === "all" ? rows.length : rows.filter((node) => nodeGroup(node) === group).length);
  }
}

// The table of nodes: state, devices as a small strip, what is free, when last heard of.
import { type Child, h, refill } from "../dom";
import type { MakeView } from "../regions";
import { LiveTable } from "../rows";
import { badge, glyph } from "../states";
import { ago } from "../time";
import type { DeviceRow, NodeRow } from "../topics";
import { look } from "../fleet/looks";
import { CELL_CLASS, gigabytes, jobLink, noNodes, orUnknown } from "./pieces";

/** What is observed, and what an admin wants where that is more to say. */
function stateCell(node: NodeRow): Child[] {
  const wish = node.intent !== "open" ? badge(node.intent) : null;
  const note = node.intent_note ? h("small", { class: "note" }, node.intent_note) : null;
  const pretend = node.pretend ? h("span", { class: "tag tag-pretend", title: "no real GPU is behind it" }, "pretend") : null;
  return [badge(node.state), " ", wish, pretend, note];
}

function cell(device: DeviceRow, node: NodeRow): HTMLElement {
  const { kind, words } = look(device, node);
  const title = `GPU ${device.index} ${device.model}: ${words}`;
  return h("span", { class: `cell ${CELL_CLASS[device.cell]} is-${kind}`, title }, h("i", { "aria-hidden": "true" }, glyph(kind)));
}

function devices(node: NodeRow): Child[] {
  if (node.devices.length === 0) return ["no GPU"];
  const models = [...new Set(node.devices.map((device) => device.model))].join(", ");
  const label = node.devices.map((device) => `GPU ${device.index} ${look(device, node).words}`).join(", ");
  const strip = h("div", { class: "strip strip-small", role: "img", "aria-label": label }, ...node.devices.map((device) => cell(device, node)));
  return [strip, h("small", {}, `${node.devices.length} × ${models}`)];
}

function jobsCell(node: NodeRow): Child[] {
  const ids = node.jobs ?? [];
  if (ids.length === 0) return ["–"];
  return ids.slice(0, 8).flatMap((id, at) => [at > 0 ? " " : null, jobLink(id)]).concat(ids.length > 8 ? [` +${ids.length - 8}`] : []);
}

const share = (free: number | null, all: number | null, show: (value: number) => string): Child =>
  free === null || all === null ? orUnknown(null, "the node has not said") : `${show(free)} of ${show(all)}`;

export const nodes: MakeView = (region) => {
  const table = new LiveTable<NodeRow>(
    [
      { label: "Node", cell: (node) => [h("b", {}, node.name), node.hostname && node.hostname !== node.name ? h("small", {}, ` ${node.hostname}`) : null] },
      { label: "State", cell: stateCell },
      { label: "GPUs", cell: devices, className: "wide" },
      { label: "Jobs", cell: jobsCell },
      { label: "CPU free", cell: (node) => share(node.cpu_cores_free, node.cpu_cores, (value) => String(Math.round(value * 10) / 10)), className: "num" },
      { label: "Memory free", cell: (node) => share(node.memory_mb_free, node.memory_mb, gigabytes), className: "num" },
      { label: "Driver", cell: (node) => orUnknown(node.driver_version, "no driver was found") },
      { label: "Last heard", cell: (node) => ago(node.last_seen_at) },
    ],
    (tr, node) => {
      tr.id = node.name;
      tr.dataset.state = node.state;
      tr.dataset.href = `/nodes/#${encodeURIComponent(node.name)}`;
    },
  );
  return {
    draw(state) {
      const rows = [...state.rows.values()] as NodeRow[];
      if (rows.length === 0) return refill(region, noNodes());
      rows.sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
      table.update(rows.map((row) => ({ key: row.name, row })));
      if (table.element.parentElement !== region) region.replaceChildren(table.element);
    },
  };
};

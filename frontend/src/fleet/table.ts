// The fleet as a table: the same facts as the canvas, for whoever prefers or needs text.
import { h } from "../dom";
import { type Line, LiveTable } from "../rows";
import { badge } from "../states";
import { jobLink, nodeLink, shortModel, tenantLink } from "../views/pieces";
import { type Fill, absent, idleFor, look, owner, reads } from "./looks";
import { type FleetCell, nameOf } from "./model";

export class FleetTable {
  private readonly table: LiveTable<FleetCell>;
  readonly element: HTMLElement;
  private known = new Map<string, FleetCell>();

  constructor() {
    const reading = (label: string, fill: Fill) => ({
      label,
      className: "num",
      cell: (cell: FleetCell) => {
        const text = cell.node.state === "lost" ? "n/a" : reads(cell.device, fill, cell.node);
        return text === "n/a" ? h("span", { class: "na", title: absent(cell.device, cell.node, fill) }, text) : text;
      },
    });
    this.table = new LiveTable<FleetCell>([
      { label: "Node", cell: ({ node }) => nodeLink(node.name) },
      { label: "GPU", cell: ({ device }) => device.index, className: "num" },
      { label: "Model", cell: ({ device }) => shortModel(device.model) },
      { label: "State", cell: ({ node, device }) => badge(look(device, node).kind, look(device, node).words + idleFor(device)) },
      { label: "Jobs", cell: ({ device }) => (device.jobs ?? []).flatMap((id) => [jobLink(id), " "]) },
      { label: "Tenants", cell: ({ device }) => (device.tenants ?? []).flatMap((name) => [tenantLink(name), " "]) },
      { label: "Owner", cell: ({ node, device }) => owner(device, node) ?? "" },
      reading("Utilisation", "utilisation"),
      reading("Memory", "memory"),
      reading("Temperature", "temperature"),
      reading("Power", "power"),
      reading("Time to free", "until"),
    ]);
    this.element = h("div", { class: "card flush" }, this.table.element);
  }

  update(cells: readonly FleetCell[]): void {
    const next = new Map<string, FleetCell>();
    const lines = cells.map((cell): Line<FleetCell> => {
      const key = nameOf(cell);
      const old = this.known.get(key);
      const row = old !== undefined && old.node === cell.node ? old : cell;
      next.set(key, row);
      return { key, row };
    });
    this.known = next;
    this.table.update(lines);
  }
}

// The legend of the map: state marks, ramp ends or owners.
import { type Child, h, refill } from "../../ui/dom";
import { glyph } from "../../ui/states";
import { type Fill, MAX_WATTS } from "./looks";
import { type FleetCell, owners } from "./model";
import { OWNERS } from "./palette";

const ENDS: Partial<Record<Fill, readonly [string, string]>> = {
  utilisation: ["0 %", "100 %"],
  memory: ["empty", "full"],
  temperature: ["25 °C", "90 °C"],
  power: ["0 W", `${MAX_WATTS} W`],
  until: ["free now", "in a day or more"],
};

const MARKS: readonly (readonly [string, string, string])[] = [
  ["hot", "state-hot", "hot"],
  ["quarantined", "state-quarantined", "degraded, quarantined"],
  ["foreign", "state-foreign", "foreign process"],
  ["dirty", "state-dirty", "dirty"],
  ["cordoned", "state-cordoned", "closed node"],
];

export function showLegend(box: Element, fill: Fill, cells: readonly FleetCell[]): void {
  const ends = ENDS[fill];
  if (fill === "state") return refill(box, ...states());
  if (ends !== undefined) {
    return refill(box, h("span", {}, ends[0], h("i", { class: "ramp", "aria-hidden": "true" }), ends[1]), hatched("not known, or does not apply"), ...marks());
  }
  const ownerNames = [...owners(cells)];
  const swatches = ownerNames.slice(0, OWNERS).map(([name], at) => h("span", {}, h("i", { class: `cell owner-${at}`, "aria-hidden": "true" }), name));
  const otherOwners = ownerNames.length > OWNERS && h("span", {}, h("i", { class: `cell owner-${OWNERS}`, "aria-hidden": "true" }), "others");
  refill(box, ...swatches, otherOwners, swatch("free", "free"), hatched("unavailable"), ...marks());
}

function states(): Child[] {
  const cells = [swatch("busy", "busy"), swatch("held-idle", "held but idle"), swatch("free", "free"), hatched("unavailable, no data")];
  return [...cells, ...marks()];
}

/** Marks on cells and node names, independent of the fill. */
function marks(): Child[] {
  return MARKS.map(([state, kind, word]) => h("span", { class: `state ${kind}` }, h("i", { "aria-hidden": "true" }, glyph(state)), word));
}

const swatch = (cell: string, word: string): HTMLElement => h("span", {}, h("i", { class: `cell cell-${cell}`, "aria-hidden": "true" }), word);
const hatched = (word: string): HTMLElement => swatch("unavailable", word);

// What each tenant holds against its guarantee and limit: the Overview's short table and the Tenants page's long one.
import { type Child, h, na, refill } from "../dom";
import type { MakeView } from "../regions";
import { type Column, type Line, LiveTable } from "../rows";
import type { TenantRow } from "../topics";
import { barScale, bullet, empty, nameRow, orNone, tenantHref, under, whenEmpty } from "./pieces";

/** A tenant and the length of the longest bar, on which its own depends. */
interface Shown {
  tenant: TenantRow;
  scale: number;
}

/** Over or under its share, where that is to be said. */
export function standing(tenant: TenantRow): Child {
  const { gpus_held: held, guaranteed_gpus: guaranteed } = tenant;
  if (guaranteed !== null && held > guaranteed) {
    return h("span", { class: "pill", title: "more than its guarantee: others may take these back" }, `${shorten(held - guaranteed)} borrowed`);
  }
  if (guaranteed !== null && held < guaranteed && tenant.jobs_waiting > 0) {
    return h("span", { class: "pill is-starved", title: "its jobs wait although it holds less than its guarantee" }, "under its guarantee");
  }
  return null;
}

const shorten = (value: number): number => Math.round(value * 100) / 100;

function number(label: string, value: (tenant: TenantRow) => Child): Column<Shown> {
  return { label, cell: ({ tenant }) => value(tenant), className: "num" };
}

const bar = ({ tenant, scale }: Shown): HTMLElement => bullet(tenant, scale);
const held = (label: string): Column<Shown> => number(label, (tenant) => shorten(tenant.gpus_held));
const promised = [
  number("Guaranteed", (tenant) => orNone(tenant.guaranteed_gpus, "guarantee")),
  number("Limit", (tenant) => orNone(tenant.max_gpus, "limit")),
];
const waiting = number("Waiting", (tenant) => tenant.jobs_waiting);

const LONG: Column<Shown>[] = [
  { label: "Tenant", cell: ({ tenant }) => [h("b", {}, tenant.name), " ", standing(tenant)] },
  { label: "GPUs: held, guarantee, limit", cell: bar },
  held("Held"),
  ...promised,
  number("Running", (tenant) => tenant.jobs_live),
  waiting,
  { label: "Tier", cell: ({ tenant }) => tenant.tier },
  number("Weight", (tenant) => tenant.weight),
  number("GPU hours used", (tenant) => tenant.usage_gpu_hours?.toFixed(1) ?? na("not counted yet")),
];

function tenantView(prefix: string, columns: readonly Column<Shown>[], classes: string): MakeView {
  return (region) => {
    const none = whenEmpty(region, () => empty("No tenant to show. An admin makes one, and adds you to it."));
    const table = new LiveTable<Shown>(columns, (tr, { tenant }) => {
      if (columns === LONG) nameRow(tr, tenant.name, region);
      tr.dataset.href = tenantHref(tenant.name);
    }, classes);
    const made = new WeakMap<TenantRow, Shown>();
    const shown = (tenant: TenantRow, scale: number): Shown => {
      const known = made.get(tenant);
      if (known?.scale === scale) return known;
      const fresh = { tenant, scale };
      made.set(tenant, fresh);
      return fresh;
    };
    return {
      draw(state) {
        const rows = under<TenantRow>(state, prefix).sort(([, a], [, b]) => b.gpus_held - a.gpus_held || (a.name < b.name ? -1 : 1));
        if (rows.length === 0) return refill(region, none());
        const scale = barScale(rows.map(([, row]) => row));
        table.update(rows.map(([key, row]): Line<Shown> => ({ key, row: shown(row, scale) })));
        if (table.element.parentElement !== region) region.replaceChildren(table.element);
      },
    };
  };
}

export const tenants = tenantView("", LONG, "rows");

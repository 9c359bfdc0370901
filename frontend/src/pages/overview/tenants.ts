// The tenants of the Overview: GPUs held, entitlement, borrowed GPUs, and starving tenants.
import { type Child, h, plural, refill } from "../../ui/dom";
import { redraw } from "../../ui/morph";
import type { MakeView } from "../../live/regions";
import { type Column, type Line, LiveTable } from "../../ui/rows";
import type { TenantRow } from "../../live/topics";
import { barScale, bullet, empty, tenantHref, tenantLink, under, upTo } from "../../ui/pieces";

type Entitled = TenantRow & { entitled_gpus?: number | null };

interface Shown {
  tenant: Entitled;
  scale: number;
}

/** Tenants that fit the page; the rest is counted and linked. */
const MOST = 6;

const shorten = (value: number): number => Math.round(value * 10) / 10;

function part({ tenant }: Shown): Child[] {
  const entitled = tenant.entitled_gpus ?? null;
  if (entitled === null) return [h("span", { class: "muted", title: "it has no jobs now" }, "–")];
  const ratio = entitled > 0 ? tenant.gpus_held / entitled : 0;
  const title = `holds ${plural(shorten(tenant.gpus_held), "GPU")} of the ${shorten(entitled)} that its weight entitles it to among tenants with jobs`;
  return [h("span", { title }, h("b", {}, `${Math.round(ratio * 100)} %`), h("span", { class: "muted" }, ` of ${shorten(entitled)}`))];
}

/** A pill for a tenant over or under its guarantee. */
function guaranteePill({ gpus_held: held, guaranteed_gpus: guaranteed, jobs_asking: asking }: TenantRow): Child {
  if (guaranteed !== null && held > guaranteed) {
    return h("span", { class: "pill", title: "more than its guarantee: other tenants can reclaim them" }, `${shorten(held - guaranteed)} borrowed`);
  }
  if (guaranteed !== null && held < guaranteed && asking > 0) {
    return h("span", { class: "pill is-starved", title: "its jobs wait for GPUs although it holds less than its guarantee" }, "under its guarantee");
  }
  return null;
}

const COLUMNS: Column<Shown>[] = [
  { label: "Tenant", cell: ({ tenant, scale }) => [tenantLink(tenant.name), " ", guaranteePill(tenant), bullet(tenant, scale)], className: "title" },
  { label: "Held", cell: ({ tenant }) => shorten(tenant.gpus_held), className: "num" },
  { label: "Of its share", cell: part, className: "num nums" },
  { label: "Guaranteed", cell: ({ tenant }) => tenant.guaranteed_gpus ?? 0, className: "num" },
  {
    label: h("span", { title: "including held jobs" }, "Waiting"),
    cell: ({ tenant }) => (tenant.jobs_waiting === 0 ? 0 : h("a", { href: `/queue/?tenant=${encodeURIComponent(tenant.name)}` }, tenant.jobs_waiting)),
    className: "num",
  },
];

export const overviewTenants: MakeView = (region) => {
  const table = new LiveTable<Shown>(COLUMNS, (tr, { tenant }) => (tr.dataset.href = tenantHref(tenant.name)), "rows compact");
  const moreLink = h("p", { class: "rest" });
  const cache = new WeakMap<Entitled, Shown>();
  const shownRow = (tenant: Entitled, scale: number): Shown => {
    const cached = cache.get(tenant);
    if (cached?.scale === scale) return cached;
    const entry = { tenant, scale };
    cache.set(tenant, entry);
    return entry;
  };
  return {
    draw(state) {
      const rows = under<Entitled>(state, "tenant:").sort(([, a], [, b]) => urgency(b) - urgency(a) || b.gpus_held - a.gpus_held || (a.name < b.name ? -1 : 1));
      if (rows.length === 0) return refill(region, empty("No tenants to show. Ask an admin to create one and add you to it."));
      const scale = barScale(rows.map(([, row]) => row));
      const cut = upTo(MOST, rows);
      table.update(cut.map(([key, row]): Line<Shown> => ({ key, row: shownRow(row, scale) })));
      if (table.element.parentElement !== region) region.replaceChildren(table.element, moreLink);
      moreLink.hidden = cut.length === rows.length;
      redraw(moreLink, h("a", { href: "/tenants/" }, plural(rows.length - cut.length, "more tenant")));
    },
  };
};

/** Tenants below their guarantee with waiting jobs come first. */
function urgency(tenant: Entitled): number {
  return tenant.jobs_asking > 0 && tenant.gpus_held < (tenant.guaranteed_gpus ?? 0) ? 1 : 0;
}

// The list of jobs: filtered by the URL, live at its top, with older pages and selection.
import { h, plural, refill } from "../../ui/dom";
import { type FirstPage, Listing, merged, restQuery, statesOf } from "./listing";
import { Rights } from "./rights";
import { Selection } from "./selection";
import { redraw } from "../../ui/morph";
import { watchFilters } from "../queue/filters";
import type { MakeView, View } from "../../live/regions";
import { LiveTable } from "../../ui/rows";
import { badge } from "../../ui/states";
import type { TopicState } from "../../live/store";
import { ago, clocked, elapsed } from "../../ui/time";
import type { JobRow } from "../../live/topics";
import { elementCounts, empty, jobHref, jobLink, named, nodeLinks, reasonOf, tenantLink, whenEmpty } from "../../ui/pieces";

/** The delay before older rows are reloaded after a change. */
const AGAIN_MS = 5000;

export const jobs: MakeView = (region) => new JobsView(region);

class JobsView implements View {
  private readonly none: () => Node;
  private readonly rights = new Rights();
  private readonly selection = new Selection(() => this.draw());
  private readonly summaryText = h("span", { role: "status" });
  private readonly counted = h("span");
  private readonly summary = h("p", { class: "summary" }, this.summaryText, this.counted);
  private readonly older = h("button", { type: "button" }, "Show older jobs");
  private readonly failure = h("span", { class: "muted", role: "status" });
  private readonly foot = h("p", { class: "summary" }, this.older, " ", this.failure);
  private readonly table = this.makeTable();
  private readonly stopFilters: () => void;
  private feed: ReadonlyMap<string, JobRow> = new Map();
  private listing: Listing;
  private timer = 0;

  constructor(private readonly region: HTMLElement) {
    this.none = whenEmpty(region);
    this.listing = this.firstListing();
    this.older.addEventListener("click", () => void this.listing.older());
    this.stopFilters = watchFilters((search) => {
      history.replaceState(null, "", search);
      if (restQuery(location.search) === this.listing.query) return;
      this.listing.close();
      this.listing = this.list();
    });
    region.addEventListener("change", (event) => {
      const box = event.target;
      if (box instanceof HTMLInputElement && box.dataset.select !== undefined) this.selection.set(Number(box.dataset.select), box.checked);
    });
    region.addEventListener("keydown", (event) => {
      if (event.key !== "x" || !(event.target instanceof HTMLElement) || !event.target.matches("tr, [data-select]")) return;
      const box = event.target.closest("tr")?.querySelector<HTMLInputElement>("[data-select]");
      if (box) this.selection.set(Number(box.dataset.select), !box.checked);
    });
    this.draw();
  }

  draw(state?: TopicState): void {
    if (state !== undefined) this.update(state);
    const { listing } = this;
    if (!listing.isRead && this.feed.size === 0 && listing.problem === "") {
      if (state?.hasRows && listing.query === "") refill(this.region, this.none());
      return;
    }
    // Limit the rows to those of a new load.
    const rows = this.matching().slice(0, listing.maxRows);
    const actionable = rows.filter((row) => this.rights.over(row));
    this.selection.all.hidden = actionable.length === 0;
    this.selection.show(actionable);
    if (listing.problem !== "" && listing.read.size === 0) return refill(this.region, refused(listing.problem));
    // Known rows stay visible if a later load fails.
    this.failure.textContent = listing.problem === "" ? "" : `The list could not be updated: ${listing.problem}.`;
    this.older.hidden = !listing.hasOlder;
    this.foot.hidden = !listing.hasOlder && listing.problem === "";
    const words = summaryText(rows, listing);
    if (this.summaryText.textContent !== words) this.summaryText.textContent = words;
    redraw(this.counted, ...(listing.hasOlder && listing.total !== null ? [" Counted ", ago(listing.total.at), "."] : []));
    if (rows.length === 0) return refill(this.region, listing.query === "" ? this.none() : noneLikeThis(listing.hasOlder), this.foot);
    this.table.update(rows.map((row) => ({ key: String(row.id), row })));
    if (this.table.element.parentElement !== this.region) this.region.replaceChildren(this.selection.bar, this.summary, this.table.element, this.foot);
    for (const box of this.region.querySelectorAll<HTMLInputElement>("[data-select]")) box.checked = this.selection.has(Number(box.dataset.select));
  }

  close(): void {
    clearTimeout(this.timer);
    this.listing.close();
    this.stopFilters();
  }

  private matching(): JobRow[] {
    return merged(this.listing.read, this.feed, this.listing.query, this.listing.isRead && !this.listing.hasOlder);
  }

  private firstListing(): Listing {
    const carried = document.querySelector("script[data-listing]");
    if (carried === null) return this.list();
    const listing = new Listing(restQuery(location.search), () => this.draw());
    listing.begin(JSON.parse(carried.textContent) as FirstPage);
    return listing;
  }

  private list(): Listing {
    const listing = new Listing(restQuery(location.search), () => this.draw());
    void listing.reload();
    return listing;
  }

  private update(state: TopicState): void {
    this.feed = state.rows as ReadonlyMap<string, JobRow>;
    // Only REST knows jobs that have left the feed.
    const { listing } = this;
    const isCut = listing.isRead && !listing.hasOlder && this.matching().length > listing.maxRows;
    const isBeyond = isCut || [...listing.read.keys()].some((id) => !this.feed.has(String(id)));
    if ((!isBeyond && !listing.hasOlder) || this.timer !== 0) return;
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      if (!document.hidden) void (isBeyond ? this.listing.reload() : this.listing.count());
    }, AGAIN_MS);
  }

  private makeTable(): LiveTable<JobRow> {
    return new LiveTable<JobRow>(
      [
        ...(this.rights.areAny ? [{ label: this.selection.all, cell: (row: JobRow) => this.rights.over(row) && this.selection.box(row.id), className: "select" }] : []),
        { label: "Id", cell: (row) => jobLink(row.id) },
        { label: "Name", cell: (row) => [named(row.name), ...elementCounts(row)], className: "name" },
        { label: "State", cell: (row) => badge(row.state), className: "is" },
        { label: "Owner", cell: (row) => named(row.user) },
        { label: "Tenant", cell: (row) => tenantLink(row.tenant) },
        { label: "GPUs", cell: (row) => row.gpu_count, className: "num" },
        { label: "Nodes", cell: (row) => nodeLinks(row.nodes) },
        { label: "Why", cell: (row) => reasonOf(row).sentence !== "" && h("span", { class: "reason" }, ...clocked(reasonOf(row).sentence)), className: "why" },
        { label: "Submitted", cell: (row) => ago(row.submitted_at), className: "nowrap" },
        { label: "Ran", cell: (row) => row.started_at !== null && elapsed(row.started_at, row.ended_at), className: "nowrap" },
      ],
      (tr, row) => {
        tr.dataset.href = jobHref(row.id);
        tr.dataset.state = row.state;
        tr.classList.toggle("is-selected", this.selection.has(row.id));
      },
      "rows jobs",
    );
  }
}

function summaryText(rows: readonly JobRow[], { hasOlder, total, query }: Listing): string {
  const listed = plural(rows.length, "job");
  const counts = total !== null && `${total.is_more ? "At least " : ""}${Math.max(total.jobs, rows.length)} jobs, ${rows.length} of them listed`;
  const elements = hasOlder ? (total?.with_elements ?? null) : withElements(rows, statesOf(query));
  // Arrays can be among the older jobs.
  const hasArrays = rows.some((row) => row.array) || (hasOlder && elements !== null && elements !== total?.jobs);
  const arrays = hasArrays ? `; an array counts as one${elements === null ? "" : ` (${elements} with its elements)`}` : "";
  return `${hasOlder ? counts || `${listed}, and older ones` : listed}${arrays}.`;
}

/** Count jobs like the Overview: each array element in these states, or in any. */
function withElements(rows: readonly JobRow[], states: readonly string[]): number {
  const of = (byState: Readonly<Record<string, number>>): number => Object.entries(byState).reduce((sum, [state, count]) => sum + (states.length === 0 || states.includes(state) ? count : 0), 0);
  return rows.reduce((sum, row) => sum + (row.array ? of(row.array.by_state) : 1), 0);
}

function noneLikeThis(hasOlder: boolean): HTMLElement {
  return empty(hasOlder ? "None of the newest jobs match this filter. " : "No jobs match this filter. ", h("a", { href: location.pathname }, "Show all"), ".");
}

function refused(words: string): HTMLElement {
  return empty(`The jobs could not be loaded: ${words}. `, h("a", { href: location.pathname }, "Show all"), ".");
}

// The details below an opened queue row, rendered by the server: reasons, jobs ahead, what would help.
import { h } from "../../ui/dom";
import { request, unexpected, whyFailed } from "../../ui/fetch_errors";
import { morphChildren } from "../../ui/morph";
import { COLUMNS } from "./row";

export class Detail {
  private id: number | null = null;
  private job = 0;
  private height = 0;
  private box = h("div", { class: "queue-detail" });
  element = h("tr", { class: "detail" });
  private readonly size = new ResizeObserver(([entry]) => {
    const height = entry?.target.getBoundingClientRect().height ?? 0;
    if (Math.abs(height - this.height) < 1) return;
    this.height = height;
    this.changed();
  });

  constructor(private readonly changed: () => void) {}

  /** The key of the open row, or null. */
  get key(): string | null {
    return this.id === null ? null : String(this.id);
  }

  toggle(id: number): void {
    const wasOpen = this.id === id;
    this.close();
    if (!wasOpen) this.open(id);
    this.changed();
  }

  close(): void {
    this.size.disconnect();
    this.element.remove();
    this.id = null;
    this.height = 0;
  }

  /** Return the place and height for the geometry; `placeOf` returns a job's index, or null to keep the last. */
  placed(placeOf: (id: number) => number | null): { job: number; height: number } | null {
    if (this.id === null) return null;
    this.job = placeOf(this.id) ?? this.job;
    return { job: this.job, height: this.height };
  }

  private open(id: number): void {
    this.id = id;
    this.box = h("div", { class: "queue-detail" }, h("p", { class: "muted" }, "Loading…"));
    this.element = h("tr", { class: "detail", "data-key": `detail:${id}` }, h("td", { colspan: COLUMNS.length }, this.box));
    this.size.observe(this.element);
    void this.load(id, this.box);
  }

  /** Load the known part first, then the slow answer of the scheduler, unless closed. */
  private async load(id: number, box: HTMLElement): Promise<void> {
    const isThere = await this.fetchPart(id, box, "?part=now");
    if (isThere && this.id === id) await this.fetchPart(id, box, "");
  }

  /** Load a part. Return whether it succeeded. */
  private async fetchPart(id: number, box: HTMLElement, part: string): Promise<boolean> {
    try {
      const response = await request(`/jobs/${id}/foreseen/${part}`, { headers: { "HX-Request": "true" } });
      const login = response.headers.get("HX-Redirect");
      if (login !== null) {
        location.assign(login);
        return false;
      }
      if (!response.ok) throw unexpected(response);
      // Server-rendered HTML with escaped user text; scripts in it would not run.
      const parsed = new DOMParser().parseFromString(await response.text(), "text/html");
      parsed.body.prepend(h("a", { href: `/jobs/${id}/?tab=why` }, `Job ${id}: why it waits`));
      // Keep the focus on links.
      morphChildren(box, parsed.body);
      return true;
    } catch (error) {
      box.replaceChildren(h("p", { class: "empty", role: "alert" }, `This could not be loaded: ${whyFailed(error)}. Close the row and open it again.`));
      return false;
    }
  }
}

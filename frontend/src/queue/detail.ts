// What an opened row of the queue shows below it: reasons so far, who stands before it, what would help; made by the server.
import { h } from "../dom";
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

  /** The key of the row that is open; null: none. */
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

  /** For the geometry; `placeOf` finds a job's number in the list, and where it is not known it stays where it was. */
  placed(placeOf: (id: number) => number | null): { job: number; height: number } | null {
    if (this.id === null) return null;
    this.job = placeOf(this.id) ?? this.job;
    return { job: this.job, height: this.height };
  }

  private open(id: number): void {
    this.id = id;
    this.box = h("div", { class: "queue-detail" }, h("p", { class: "muted" }, "Working out when it could start…"));
    this.element = h("tr", { class: "detail", "data-key": `detail:${id}` }, h("td", { colspan: COLUMNS.length }, this.box));
    this.size.observe(this.element);
    void this.load(id, this.box);
  }

  private async load(id: number, box: HTMLElement): Promise<void> {
    try {
      const response = await fetch(`/jobs/${id}/foreseen/`, { credentials: "same-origin", headers: { "HX-Request": "true" } });
      const login = response.headers.get("HX-Redirect");
      if (login !== null) return location.assign(login);
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      // The server's own page, in which what people typed is text already; scripts in it would not run.
      const part = new DOMParser().parseFromString(await response.text(), "text/html");
      box.replaceChildren(h("a", { href: `/jobs/${id}/?tab=why` }, `Job ${id}: why it waits`), ...part.body.childNodes);
    } catch (error) {
      const words = error instanceof Error ? error.message : "no answer";
      box.replaceChildren(h("p", { class: "empty", role: "alert" }, `This could not be read: ${words}. Close the row and open it again.`));
    }
  }
}

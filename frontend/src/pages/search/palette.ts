// The command palette, Ctrl-K: pages, actions of this page, and jobs, nodes and tenants found by the server.
import { h, refill } from "../../ui/dom";
import { unexpected, whyFailed } from "../../ui/fetch_errors";
import { score } from "./fuzzy";
import { named } from "../../ui/pieces";

export interface Command {
  kind: string;
  name: string;
  about: string;
  /** A URL of this site, or a function. */
  run: string | (() => void);
}

const PAUSE_MS = 120;
const MOST = 12;

export function startCommands(help: () => void, go: (href: string) => void = (href) => location.assign(href)): void {
  const palette = new Palette(() => [...pages(), ...actions(help)], go);
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    // There are no pages before the login.
    if (document.querySelector("nav.rail") === null) return;
    event.preventDefault();
    palette.toggle();
  });
  for (const button of document.querySelectorAll("[data-palette]")) button.addEventListener("click", () => palette.toggle());
}

function pages(): Command[] {
  const links = document.querySelectorAll<HTMLAnchorElement>("nav.rail > a, .menu-panel > a");
  const commands = new Map<string, Command>();
  for (const link of links) commands.set(link.pathname, { kind: "page", name: link.textContent?.trim() ?? "", about: "", run: link.pathname });
  commands.set("/join/", { kind: "page", name: "Join a node", about: "", run: "/join/" });
  return [...commands.values()];
}

function actions(help: () => void): Command[] {
  const commands: Command[] = [];
  const press = (selector: string, name: string): void => {
    const target = document.querySelector<HTMLElement>(selector);
    if (target !== null) commands.push({ kind: "action", name, about: "", run: () => target.click() });
  };
  press("[data-theme-toggle]", "Theme: switch between light and dark");
  press("[data-fleet-table]", "Fleet: table or map");
  press("form[action$='/logout/'] button", "Log out");
  // The buttons of this page; dialogs are only opened.
  for (const button of document.querySelectorAll<HTMLElement>(".page-head :is(a.button, button, summary.button)")) {
    if (button.hidden || button.matches(":disabled, details:not([open]) > :not(summary) *")) continue;
    const name = button.textContent?.trim() ?? "";
    if (name !== "" && !button.matches("[data-fleet-table]")) commands.push({ kind: "action", name, about: "on this page", run: () => button.click() });
  }
  for (const group of ["rack", "model", "tenant", "state"]) commands.push({ kind: "action", name: `Fleet by ${group}`, about: "", run: `/fleet/?group=${group}` });
  commands.push({ kind: "action", name: "Wall mode", about: "for a screen on the wall", run: "/overview/?wall=1" });
  commands.push({ kind: "action", name: "Keys", about: "what each key does", run: help });
  return commands;
}

/** Return the best local matches first, then those of the server. */
export function ranked(local: readonly Command[], remote: readonly Command[], query: string): Command[] {
  if (query === "") return local.filter(({ kind }) => kind === "page");
  const scored = local.flatMap((command) => {
    const value = score(command.name, query);
    return value === null ? [] : [{ command, value }];
  });
  scored.sort((a, b) => b.value - a.value);
  const isNumber = /^#?\d+$/.test(query);
  const best = scored.map(({ command }) => command);
  return (isNumber ? [...remote, ...best] : [...best.slice(0, remote.length > 0 ? 5 : MOST), ...remote]).slice(0, MOST);
}

class Palette {
  private readonly input = h("input", {
    type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list", "aria-autocomplete": "list",
    "aria-label": "Go to a page, a job, a node, a tenant, or do something", placeholder: "Page, job, node, tenant, action…", autocomplete: "off", spellcheck: "false",
  });
  private readonly list = h("ul", { id: "palette-list", role: "listbox", "aria-label": "Results" });
  private readonly none = h("p", { class: "empty", role: "status", hidden: true });
  private readonly dialog = h("dialog", { class: "palette", "aria-label": "Command palette" }, this.input, this.list, this.none);
  private listed: Command[] = [];
  private found: Command[] = [];
  private at = 0;
  private timer = 0;
  private request: AbortController | null = null;

  constructor(
    private readonly localCommands: () => Command[],
    private readonly go: (href: string) => void,
  ) {
    this.input.addEventListener("input", () => this.changed());
    this.dialog.addEventListener("keydown", (event) => this.keyed(event));
    // A click on the backdrop is a click on the dialog itself.
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.list.addEventListener("click", (event) => {
      const item = event.target instanceof Element ? event.target.closest("li") : null;
      const command = item === null ? undefined : this.listed[[...this.list.children].indexOf(item)];
      if (command !== undefined) this.run(command);
    });
  }

  toggle(): void {
    if (this.dialog.open) return this.dialog.close();
    if (!this.dialog.isConnected) document.body.append(this.dialog);
    this.input.value = "";
    this.found = [];
    this.draw();
    this.dialog.showModal();
    this.input.focus();
  }

  private keyed(event: KeyboardEvent): void {
    // Keys of an input method, such as Enter that takes its proposal.
    if (event.isComposing) return event.stopPropagation();
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step !== 0) {
      event.preventDefault();
      this.at = (this.at + step + this.listed.length) % Math.max(1, this.listed.length);
      this.mark();
    } else if (event.key === "Enter") {
      event.preventDefault();
      const command = this.listed[this.at];
      if (command !== undefined) this.run(command);
    }
    // Suspend the page's shortcuts while the palette is open.
    if (event.key !== "Escape" && !(event.ctrlKey || event.metaKey)) event.stopPropagation();
  }

  private run(command: Command): void {
    this.dialog.close();
    if (typeof command.run === "string") this.go(command.run);
    else command.run();
  }

  private changed(): void {
    this.found = [];
    this.draw();
    clearTimeout(this.timer);
    this.request?.abort();
    const query = this.input.value.trim();
    if (query !== "") this.timer = window.setTimeout(() => void this.ask(query), PAUSE_MS);
  }

  private async ask(query: string): Promise<void> {
    this.request = new AbortController();
    try {
      const answer = await fetch(`/search/?q=${encodeURIComponent(query)}`, { signal: this.request.signal, redirect: "manual", headers: { Accept: "application/json" } });
      if (!answer.ok) throw unexpected(answer);
      const { found } = (await answer.json()) as { found: { kind: string; name: string; about: string; href: string }[] };
      this.found = found.map(({ kind, name, about, href }) => ({ kind, name, about, run: href }));
      this.draw();
    } catch (error) {
      if (!(error instanceof DOMException && error.name === "AbortError")) this.fail(error);
    }
  }

  private fail(error: unknown): void {
    this.none.hidden = false;
    this.none.textContent = `The search failed: ${whyFailed(error)}. Only pages and actions are shown.`;
  }

  private draw(): void {
    const query = this.input.value.trim();
    this.listed = ranked(this.localCommands(), this.found, query);
    this.at = 0;
    const items = this.listed.map(({ kind, name, about }, at) =>
      h("li", { role: "option", id: `palette-${at}` }, h("span", { class: "tag" }, kind), h("span", { class: "grow" }, named(name)), h("span", { class: "muted named", title: about }, about)),
    );
    refill(this.list, ...items);
    this.none.hidden = this.listed.length > 0;
    this.none.textContent = "No page, job, node, tenant or action matches.";
    this.mark();
  }

  private mark(): void {
    [...this.list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === this.at)));
    this.list.children[this.at]?.scrollIntoView({ block: "nearest" });
    if (this.listed.length > 0) this.input.setAttribute("aria-activedescendant", `palette-${this.at}`);
    else this.input.removeAttribute("aria-activedescendant");
  }
}

// Keyboard shortcuts: pages, filter, rows, open, close, help.
import { h, isTyping } from "./dom";

const PAGES: Record<string, readonly [string, string]> = {
  m: ["/mine/", "My work"],
  o: ["/overview/", "Overview"],
  f: ["/fleet/", "Fleet"],
  q: ["/queue/", "Queue"],
  j: ["/jobs/", "Jobs"],
  n: ["/nodes/", "Nodes"],
  e: ["/endpoints/", "Endpoints"],
  t: ["/tenants/", "Tenants"],
  u: ["/usage/", "Usage"],
  h: ["/cluster/health/", "Health"],
  s: ["/submit/", "Submit"],
};

const KEYS: readonly (readonly [string, string])[] = [
  ["Ctrl K", "find a page, a job, a node, a tenant, an action"],
  ["/", "filter"],
  ["j  k", "next, previous row"],
  ["x", "select the job of the row"],
  ["Enter", "open the row, select the GPU"],
  ["← ↑ ↓ →", "move between GPUs on the Fleet page"],
  ["t", "show the Fleet as a table or a map"],
  ["Esc", "close, or leave the filter"],
  ["?", "this help"],
];

/** Return whether the navigation of this user has the page. */
function hasPage(href: string): boolean {
  const rail = document.querySelector("nav.rail");
  return rail === null || rail.querySelector(`a[href="${href}"]`) !== null;
}

/** The longest time between `g` and the next key. */
const CHORD_MS = 1200;

export function startKeyboard(go: (href: string) => void = (href) => location.assign(href)): void {
  startOutside();
  let chordAt = -Infinity;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape" && event.target instanceof HTMLElement) leave(event.target);
      return;
    }
    const page = performance.now() - chordAt < CHORD_MS ? PAGES[event.key] : undefined;
    chordAt = -Infinity;
    if (page !== undefined && hasPage(page[0])) {
      // `t` alone has a meaning on the Fleet page.
      event.preventDefault();
      return go(page[0]);
    }
    if (event.key === "g") chordAt = performance.now();
    else if (event.key === "?") showHelp();
    else if (event.key === "/") focusFilter(event);
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "Enter") open(event, go);
    else if (event.key === "Escape") close();
  });
}

function leave(field: HTMLElement): void {
  if (field instanceof HTMLInputElement && field.matches("[data-filter]") && field.value !== "") {
    field.value = "";
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
  field.blur();
}

function focusFilter(event: Event): void {
  const input = document.querySelector<HTMLInputElement>("input[data-filter], input[data-log-search]");
  if (input === null) return;
  event.preventDefault();
  input.focus();
  input.select();
}

function move(by: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("main table.rows tbody tr[data-key]")].filter(
    (tr) => !tr.hidden && !tr.classList.contains("group"),
  );
  const focused = document.activeElement?.closest<HTMLElement>("tr[data-key]");
  const at = focused ? rows.indexOf(focused) : -1;
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
  if (next === undefined) return;
  next.tabIndex = -1;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function open(event: Event, go: (href: string) => void): void {
  const row = document.activeElement;
  if (!(row instanceof HTMLTableRowElement)) return;
  const href = row.dataset.href ?? row.querySelector("a")?.getAttribute("href");
  if (href === null || href === undefined || !/^\/(?!\/)/.test(href)) return;
  event.preventDefault();
  go(href);
}

function opened(): NodeListOf<HTMLDetailsElement> {
  return document.querySelectorAll<HTMLDetailsElement>("details.menu[open], details.confirm[open], details.more[open]");
}

/** Close menus and dialogs on a click outside, but not if the press began inside, such as a text selection. */
function startOutside(): void {
  let pressed: EventTarget | null = null;
  document.addEventListener("pointerdown", (event) => (pressed = event.target), true);
  // Capture the click before it changes the page.
  document.addEventListener(
    "click",
    (event) => {
      const hit = [event.target, event.detail > 0 ? pressed : null].filter((target) => target instanceof Node);
      for (const menu of opened()) if (!hit.some((target) => menu.contains(target))) menu.open = false;
    },
    true,
  );
}

/** Close the topmost layer: open menus and dialogs, then the fleet panel, which restores the focus itself. */
function close(): void {
  const open = opened();
  for (const menu of open) menu.open = false;
  const panel = document.querySelector<HTMLElement>("[data-fleet-panel] [data-does=close]");
  if (open.length === 0 && panel !== null) return panel.click();
  if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
}

let help: HTMLDialogElement | null = null;

export function showHelp(): void {
  help ??= makeHelp();
  if (!help.isConnected) document.body.append(help);
  if (!help.open) help.showModal();
}

function makeHelp(): HTMLDialogElement {
  const places = Object.entries(PAGES).flatMap(([key, [href, name]]) => (hasPage(href) ? [[`g ${key}`, name] as const] : []));
  const list = (title: string, all: readonly (readonly [string, string])[]): HTMLElement =>
    h("div", {}, h("h3", {}, title), h("dl", { class: "facts" }, ...all.flatMap(([keys, words]) => [h("dt", {}, h("kbd", {}, keys)), h("dd", {}, words)])));
  const closeButton = h("button", { type: "submit" }, "Close");
  const dialog = h(
    "dialog",
    { class: "help", "aria-labelledby": "help-title" },
    h("form", { method: "dialog" }, h("h2", { id: "help-title" }, "Keys"), h("div", { class: "help-lists" }, list("Everywhere", KEYS), list("Go to", places)), closeButton),
  );
  // A click on the backdrop is a click on the dialog itself.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  return dialog;
}

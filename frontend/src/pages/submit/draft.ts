// Mark invalid fields of a form, as reported by the server-rendered panel, and keep drafts.
import { h } from "../../ui/dom";

type Field = HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement;
const DRAFT = "draft";

/** Return whether a field differs from the server's value. */
function isOther(field: Element): field is Field {
  if (field instanceof HTMLSelectElement) return [...field.options].some((option) => option.selected !== option.defaultSelected);
  return (field instanceof HTMLInputElement || field instanceof HTMLTextAreaElement) && field.type !== "hidden" && field.value !== field.defaultValue;
}

interface Draft {
  /** The page of the form, and its user: another one can log in. */
  at: string;
  user: string;
  values: [string, string][];
  /** The session had ended: the login returns to the form. */
  isAfterLogin?: boolean;
}

const read = (): Draft | null => JSON.parse(sessionStorage.getItem(DRAFT) ?? "null") as Draft | null;

/** Store the typed values across a reload, as not all browsers do, and across a login. */
export function keepDraft(): void {
  const form = document.querySelector<HTMLFormElement>("form[data-restored]");
  if (form === null) return;
  const values = [...form.elements].filter(isOther).map((field): [string, string] => [field.name, field.value]);
  sessionStorage.setItem(DRAFT, JSON.stringify({ at: location.pathname + location.search, user: form.dataset.restored ?? "", values } satisfies Draft));
}

/** On the page of the login: keep the draft of the page to which it returns. */
export function keepDraftOverLogin(): void {
  const next = document.querySelector<HTMLInputElement>("main form input[name=next]")?.value;
  const draft = read();
  if (!next || draft === null) return;
  const { pathname, search } = new URL(next, location.href);
  sessionStorage.setItem(DRAFT, JSON.stringify({ ...draft, isAfterLogin: draft.at === pathname + search } satisfies Draft));
}

function putBack(form: HTMLFormElement, isReload: boolean): void {
  const draft = read();
  sessionStorage.removeItem(DRAFT);
  const isOwn = draft !== null && draft.at === location.pathname + location.search && draft.user === (form.dataset.restored ?? "");
  for (const [name, value] of isOwn && (isReload || draft.isAfterLogin) ? draft.values : []) {
    const field = form.elements.namedItem(name);
    if (field !== null && "value" in field) field.value = value;
  }
}

const isReloaded = (): boolean => (performance.getEntriesByType("navigation")[0] as PerformanceNavigationTiming | undefined)?.type === "reload";

/** Restore typed values after a reload or a login (browsers do so after Back) and reload the panel, which
 * shows the server's values. */
export function refreshRestored(isReload = isReloaded()): void {
  for (const form of document.querySelectorAll<HTMLFormElement>("form[data-restored]")) {
    putBack(form, isReload);
    const other = [...form.elements].filter(isOther);
    for (const field of other) field.closest("details")?.setAttribute("open", "");
    other[0]?.dispatchEvent(new Event("change", { bubbles: true }));
  }
}

/** `data-wrong` elements in the panel name the invalid fields of its form. */
export function startMarks(): void {
  document.addEventListener("htmx:afterSettle", (event) => {
    const panel = (event as CustomEvent<{ target?: Element } | null>).detail?.target;
    const form = panel === undefined || panel.id === "" ? null : document.querySelector<HTMLFormElement>(`form[hx-target="#${panel.id}"]`);
    if (panel === undefined || form === null) return;
    const wrong = new Map([...panel.querySelectorAll<HTMLElement>("[data-wrong]")].map((element) => [element.dataset.wrong, element.textContent ?? ""]));
    for (const field of form.querySelectorAll<HTMLElement>(".field [name]")) mark(field, wrong.get(field.getAttribute("name") ?? ""));
    // In use, remove the errors of the last submit; the panel shows the current ones. They stay when the page opens.
    if (form.contains(document.activeElement) && form.querySelector("[aria-invalid]") === null) for (const old of form.querySelectorAll(".note.bad")) old.remove();
  });
}

/** Do not mark the field being edited; clear corrected fields at once. */
function mark(field: HTMLElement, message: string | undefined): void {
  if (message !== undefined && field === document.activeElement && !field.hasAttribute("aria-invalid")) return;
  const around = field.closest(".field");
  for (const old of around?.querySelectorAll(".field-error") ?? []) old.remove();
  field.removeAttribute("aria-invalid");
  field.removeAttribute("aria-describedby");
  if (message === undefined) return;
  const id = `e_${field.getAttribute("name")}`;
  around?.append(h("p", { class: "field-error", id }, message));
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", id);
  field.closest("details")?.setAttribute("open", "");
}

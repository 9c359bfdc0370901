// Update an element to match another, changing only differences: focus and open details stay.
import { type Child, add } from "./dom";

/** Attributes set by the user or the script, which stay. */
const KEPT = new Set(["open", "tabindex", "hidden"]);

/** Return the key of an element among its siblings, if any. */
function keyOf(node: Node): string | null {
  return node instanceof Element ? node.id || node.getAttribute("data-key") : null;
}

function isSame(old: Node, target: Node): boolean {
  return old.nodeType === target.nodeType && old.nodeName === target.nodeName && keyOf(old) === keyOf(target);
}

/** Like `refill`, but update existing children in place. For children without listeners. */
export function redraw(parent: Element, ...target: Child[]): void {
  const holder = parent.cloneNode(false) as Element;
  add(holder, target);
  morphChildren(parent, holder);
}

/** The children of `old` become those of `fresh`; elements with an id or `data-key` are found again wherever they went. */
export function morphChildren(old: Element, target: Element): void {
  const keyed = new Map<string, ChildNode>();
  const keys = new Set([...target.childNodes].map(keyOf));
  for (const child of [...old.childNodes]) {
    const key = keyOf(child);
    // Remove first: then kept elements need not move, as a moved element loses the focus.
    if (key && !keys.has(key)) child.remove();
    else if (key) keyed.set(key, child);
  }
  let place: ChildNode | null = old.firstChild;
  for (const next of [...target.childNodes]) {
    const key = keyOf(next);
    const match = key ? keyed.get(key) : place;
    if (match && isSame(match, next)) {
      if (match === place) place = place.nextSibling;
      else old.insertBefore(match, place);
      morph(match, next);
    } else {
      old.insertBefore(document.importNode(next, true), place);
    }
  }
  while (place !== null) {
    const next: ChildNode | null = place.nextSibling;
    place.remove();
    place = next;
  }
}

function morph(old: Node, target: Node): void {
  if (!(old instanceof Element) || !(target instanceof Element)) {
    if (old.nodeValue !== target.nodeValue) old.nodeValue = target.nodeValue;
    return;
  }
  if (old.isEqualNode(target) || isInUse(old)) return;
  for (const { name } of [...old.attributes]) {
    if (!target.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of target.attributes) {
    if (old.getAttribute(name) === value) continue;
    // The content policy forbids style attributes: see h().
    if (name === "style" && old instanceof HTMLElement) old.style.cssText = value;
    else old.setAttribute(name, value);
  }
  morphChildren(old, target);
  // Once a user has typed, a new default is not shown by itself.
  if (old instanceof HTMLTextAreaElement) old.value = old.defaultValue;
}

/** Return whether the user edits the element, or another part of the script draws it. */
function isInUse(element: Element): boolean {
  if (element.matches("input, textarea")) return element === document.activeElement || isEdited(element);
  if (element.matches("select, [data-view], [data-kept], [aria-disabled]")) return true;
  if (!(element instanceof HTMLFormElement)) return false;
  // A hidden field can say which text, or which version, the user has begun to edit.
  return [...element.querySelectorAll("input, textarea")].some(isEdited) || (element.contains(document.activeElement) && document.activeElement?.matches("input, textarea, select") === true);
}

function isEdited(field: Element): boolean {
  if (field instanceof HTMLInputElement) return field.value !== field.defaultValue || field.checked !== field.defaultChecked;
  return field instanceof HTMLTextAreaElement && field.value !== field.defaultValue;
}

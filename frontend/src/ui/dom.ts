// Create elements from data; text is never parsed as markup.

export type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined>;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    // Set the style object: the content policy forbids the attribute.
    if (name === "style") element.style.cssText = String(value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

export function add(parent: Node, children: readonly Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace the children of `parent`, unless they are equal. */
export function refill(parent: Element, ...children: Child[]): void {
  const holder = parent.cloneNode(false) as Element;
  add(holder, children);
  if (!parent.isEqualNode(holder)) parent.replaceChildren(...holder.childNodes);
}

/** An unknown value with its reason; never 0. */
export function na(reason: string): HTMLElement {
  return h("span", { class: "na", title: reason }, "n/a");
}

/** Return a link if the URL is on this site, else the text. */
export function link(href: string | null, ...children: Child[]): HTMLElement {
  const isOwn = href !== null && /^\/(?!\/)/.test(href);
  return isOwn ? h("a", { href }, ...children) : h("span", {}, ...children);
}

export function plural(count: number, singular: string, pluralForm = `${singular}s`): string {
  return `${count} ${count === 1 ? singular : pluralForm}`;
}

/** Return whether keys are text for this element: not for a checkbox. */
export function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement) || target.matches("input[type=checkbox]")) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

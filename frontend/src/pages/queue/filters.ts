// The URL of the Queue page: filters and order, changes of them, and the topic name.

export const FILTERS = ["tenant", "user", "state", "reason", "group"] as const;
const SORTS = ["submitted", "gpus", "priority", "name", "id"];

/** Return the topic query of a URL, in a fixed order so that equal queries share a topic. */
export function topicQuery(search: string): string {
  const params = new URLSearchParams(search);
  const query = new URLSearchParams();
  for (const name of FILTERS) {
    const value = params.get(name)?.trim() ?? "";
    if (value !== "") query.set(name, value);
  }
  const text = params.get("q")?.trim() ?? "";
  if (text !== "") query.set("q", text);
  const sort = params.get("sort") ?? "";
  if (SORTS.includes(sort.replace(/^-/, ""))) query.set("sort", sort);
  return query.toString();
}

/** Return the URL with one parameter changed; "" removes it. */
export function changed(search: string, name: string, value: string): string {
  const params = new URLSearchParams(search);
  if (value === "") params.delete(name);
  else params.set(name, value);
  const text = params.toString();
  return text === "" ? location.pathname : `?${text}`;
}

/** Update the links that remove filters without a field: drop those that a field now sets,
 * and point the others to the current URL. */
function keepPills(hasField: (name: string) => boolean, search: string): void {
  for (const pill of document.querySelectorAll<HTMLAnchorElement>("a[data-drops]")) {
    const name = pill.dataset.drops ?? "";
    if (hasField(name)) pill.remove();
    else pill.setAttribute("href", changed(search, name, ""));
  }
}

/** Watch the filter form: apply choices at once and typed text after a pause. */
export function watchFilters(ask: (search: string) => void): () => void {
  const form = document.querySelector<HTMLFormElement>("form[data-filters]");
  const stop = new AbortController();
  let timer = 0;
  const apply = (): void => {
    const params = new URLSearchParams(location.search);
    const values = new FormData(form ?? undefined);
    const names = [...(form?.elements ?? [])].map((field) => field.getAttribute("name")).filter((name) => name !== null);
    for (const name of names) {
      const value = String(values.get(name) ?? "").trim();
      if (value !== "") params.set(name, value);
      else if (document.querySelector(`a[data-drops="${name}"]`) === null) params.delete(name);
    }
    params.delete("cursor");
    params.delete("from");
    keepPills((name) => String(values.get(name) ?? "") !== "", String(params));
    ask(params.size === 0 ? location.pathname : `?${params}`);
  };
  const soon = (event: Event): void => {
    event.preventDefault();
    clearTimeout(timer);
    timer = window.setTimeout(apply, event.type === "input" ? 250 : 0);
  };
  for (const kind of ["input", "change", "submit"]) form?.addEventListener(kind, soon, { signal: stop.signal });
  return () => stop.abort();
}

// The filter of a page that has all its rows: hides rows without the typed text; the URL
// stores it as ?q=.

/** Return whether the text contains every word, in any order. */
export function matches(text: string, query: string): boolean {
  const lower = text.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}

let isOn = false;

export function applyFilter(): void {
  const input = document.querySelector<HTMLInputElement>('input[data-filter=""]');
  const query = input?.value.trim() ?? "";
  if (query === "" && !isOn) return;
  isOn = query !== "";
  for (const region of document.querySelectorAll<HTMLElement>("[data-live]")) {
    for (const tr of region.querySelectorAll<HTMLElement>("table.rows tbody tr")) {
      // Hide group headings while filtering.
      tr.hidden = isOn && (tr.classList.contains("group") || !matches(tr.textContent ?? "", query));
    }
  }
}

export function startFilter(): void {
  const input = document.querySelector<HTMLInputElement>('input[data-filter=""]');
  if (input === null) return;
  input.value = new URLSearchParams(location.search).get("q") ?? "";
  applyFilter();
  document.addEventListener("input", (event) => {
    if (event.target !== input) return;
    remember(input.value.trim());
    applyFilter();
  });
}

function remember(query: string): void {
  const address = new URL(location.href);
  if (query === "") address.searchParams.delete("q");
  else address.searchParams.set("q", query);
  history.replaceState(history.state, "", address);
}

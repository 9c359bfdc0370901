// The filter input of a page whose rows are all there: hides those whose text does not have what was typed; the address
// has it, too (?q=).

/** Every word must be there, in any order. */
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
      // A group's heading is of no use among few rows.
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

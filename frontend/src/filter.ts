// The filter input of a page whose rows are all there: hides those whose text does not have what was typed.

/** Every word must be there, in any order. */
export function matches(text: string, asked: string): boolean {
  const lower = text.toLowerCase();
  return asked.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}

let isOn = false;

export function applyFilter(): void {
  const input = document.querySelector<HTMLInputElement>('input[data-filter=""]');
  const asked = input?.value.trim() ?? "";
  if (asked === "" && !isOn) return;
  isOn = asked !== "";
  for (const region of document.querySelectorAll<HTMLElement>("[data-live]")) {
    for (const tr of region.querySelectorAll<HTMLElement>("table.rows tbody tr")) {
      // A group's heading is of no use among few rows.
      tr.hidden = isOn && (tr.classList.contains("group") || !matches(tr.textContent ?? "", asked));
    }
  }
}

export function startFilter(): void {
  document.addEventListener("input", (event) => {
    if (event.target instanceof HTMLElement && event.target.matches('[data-filter=""]')) applyFilter();
  });
}

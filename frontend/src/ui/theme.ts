// The light and dark switch: auto, light, dark, kept in this browser; a script in the page's head sets it before paint.

export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export const STORAGE_KEY = "theme";

export function nextTheme(now: string | undefined): Theme {
  // Without a choice, follow the system.
  const at = THEMES.findIndex((theme) => theme === (now ?? "auto"));
  return THEMES[(at + 1) % THEMES.length] ?? "auto";
}

const WORDS: Record<Theme, string> = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };

function show(button: HTMLElement, theme: string | undefined): void {
  const words = WORDS[(theme ?? "auto") as Theme] ?? WORDS.auto;
  button.title = words;
  button.setAttribute("aria-label", `${words}. Change`);
}

/** Makes the page's theme buttons work; `changed` is called after each change, also the system's own. */
export function startTheme(changed: () => void): void {
  const root = document.documentElement;
  const buttons = document.querySelectorAll<HTMLElement>("[data-theme-toggle]");
  for (const button of buttons) {
    show(button, root.dataset.theme);
    button.addEventListener("click", () => {
      const theme = nextTheme(root.dataset.theme);
      root.dataset.theme = theme;
      try {
        localStorage.setItem(STORAGE_KEY, theme);
      } catch {
        // Without storage, change only this page.
      }
      buttons.forEach((each) => show(each, theme));
      changed();
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}

// The order and storage of themes.
import { expect, test, vi } from "vitest";
import { STORAGE_KEY, nextTheme, startTheme } from "../src/ui/theme";

test("auto, light, dark, auto", () => {
  expect(nextTheme("auto")).toBe("light");
  expect(nextTheme("light")).toBe("dark");
  expect(nextTheme("dark")).toBe("auto");
  expect(nextTheme(undefined)).toBe("light");
  expect(nextTheme("evil")).toBe("auto");
});

test("a press changes the page and all buttons, and is stored", () => {
  document.body.innerHTML = "<button data-theme-toggle></button><button data-theme-toggle></button>";
  const changed = vi.fn();
  startTheme(changed);
  const [first, second] = document.querySelectorAll("button");
  first?.click();
  second?.click();
  const root = document.documentElement;
  expect([root.dataset.theme, localStorage.getItem(STORAGE_KEY), changed.mock.calls.length]).toEqual(["dark", "dark", 2]);
  expect([first?.title, second?.getAttribute("aria-label")]).toEqual(["Theme: dark", "Theme: dark. Change"]);
  delete root.dataset.theme;
  localStorage.clear();
});

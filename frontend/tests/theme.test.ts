// The theme's order.
import { expect, test } from "vitest";
import { nextTheme } from "../src/theme";

test("auto, light, dark, auto", () => {
  expect(nextTheme("auto")).toBe("light");
  expect(nextTheme("light")).toBe("dark");
  expect(nextTheme("dark")).toBe("auto");
  expect(nextTheme(undefined)).toBe("light");
  expect(nextTheme("evil")).toBe("auto");
});

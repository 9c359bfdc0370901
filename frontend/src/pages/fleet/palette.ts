// The fleet's colours, read from the page's style sheet: so the canvas follows the theme.
import type { Palette } from "./paint";

export type { Palette };

const STEPS = 32;
/** The number of owners with their own colour; the next colour is for all others. */
export const OWNERS = 7;

export function readPalette(element: Element): Palette {
  const read = (name: string, otherwise: string): string => resolve(element, `var(${name}, ${otherwise})`);
  const steps = ramp(read("--ramp-0", "#eef2fb"), read("--ramp-1", "#1f3d99"), STEPS);
  return {
    busy: read("--cell-busy", "#3b5bcc"),
    heldIdle: read("--cell-held-idle", "#b7791f"),
    free: read("--cell-free", "#f4f5f7"),
    unavailable: read("--cell-unavailable", "#9aa0a8"),
    text: read("--text", "#1c1f24"),
    muted: read("--muted", "#5f6670"),
    onBusy: read("--on-accent", "#ffffff"),
    line: read("--line", "#d5d9df"),
    accent: read("--accent", "#2b5bd7"),
    surface: read("--surface", "#ffffff"),
    red: read("--red", "#c02b2b"),
    amber: read("--amber-mark", "#c77d0a"),
    owners: Array.from({ length: OWNERS + 1 }, (_, at) => read(`--owner-${at}`, "#3b5bcc")),
    ramp: steps,
    onRamp: steps.map((colour) => (isDark(colour) ? "#ffffff" : "#000000")),
  };
}

/** A colour as rgb(): variables may hold light-dark(), color-mix() or names, which only the browser can resolve. */
export function resolve(element: Element, colour: string): string {
  const probe = document.createElement("span");
  probe.style.color = colour;
  probe.style.display = "none";
  // Ignore forced colours, or all cells would look alike.
  probe.style.setProperty("forced-color-adjust", "none");
  element.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved || colour;
}

/** Colours between two, both included. */
export function ramp(from: string, to: string, steps: number): string[] {
  const [a, b] = [numbers(from), numbers(to)];
  return Array.from({ length: steps }, (_, at) => {
    const share = steps === 1 ? 0 : at / (steps - 1);
    const mixed = [0, 1, 2].map((part) => Math.round((a[part] ?? 0) + ((b[part] ?? 0) - (a[part] ?? 0)) * share));
    return `rgb(${mixed.join(", ")})`;
  });
}

/** Return whether white contrasts better than black, by relative luminance (at least 4.5). */
export function isDark(colour: string): boolean {
  const [red = 0, green = 0, blue = 0] = numbers(colour).map((part) => (part / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.18;
}

function numbers(colour: string): number[] {
  const hex = /^#([0-9a-f]{6})$/i.exec(colour)?.[1];
  if (hex !== undefined) return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const parts = (colour.match(/-?[\d.]+/g) ?? []).map(Number);
  return colour.startsWith("color(srgb") ? parts.slice(0, 3).map((part) => part * 255) : parts.slice(0, 3);
}

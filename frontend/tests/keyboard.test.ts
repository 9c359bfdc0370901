// The page's keys where two parts listen: what one of them has taken is not for the other.
import { expect, test, vi } from "vitest";
import { fleet } from "../src/fleet/view";
import { startKeyboard } from "../src/keyboard";
import type { Page } from "../src/regions";
import type { DeviceRow, NodeRow } from "../src/topics";

test("g t leaves for the tenants, and does not turn the fleet into a table on the way; t alone does", () => {
  document.body.innerHTML = '<button data-fleet-table aria-pressed="false"></button><section></section>';
  const toggle = document.querySelector("button") as HTMLButtonElement;
  const go = vi.fn<(href: string) => void>();
  startKeyboard(go);
  const view = fleet(document.querySelector("section") as HTMLElement, {} as Page);
  const press = (key: string): boolean => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const device = { id: 1, index: 0, uuid: "GPU-1", model: "A100", health: "ok", cell: "free", held: null, jobs: [], reading: null } as unknown as DeviceRow;
  const node = { name: "n1", state: "online", intent: "open", labels: {}, jobs: [], devices: [device] } as unknown as NodeRow;
  view.draw({ status: "ready", seq: 1, rows: new Map([["n1", node]]), error: null, known: true });
  press("g");
  press("t");
  expect([go.mock.lastCall?.[0], toggle.getAttribute("aria-pressed")]).toEqual(["/tenants/", "false"]);
  press("t");
  expect(toggle.getAttribute("aria-pressed")).toBe("true");
  view.close?.();
});

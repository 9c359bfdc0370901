// One GPU under the pointer or the keys: selection, tooltip and links.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { interact } from "../src/pages/fleet/interaction";
import { layout } from "../src/pages/fleet/layout";
import { value } from "../src/pages/fleet/looks";
import { model, owners, paints, describeCell } from "../src/pages/fleet/model";
import { overviewStrip, stripCells } from "../src/pages/fleet/strip";
import { Tooltip } from "../src/pages/fleet/tooltip";
import type { Page } from "../src/live/regions";
import type { DeviceRow } from "../src/live/topics";
import { node, nodes } from "./machines";

beforeEach(() => document.body.replaceChildren());
afterEach(() => vi.restoreAllMocks());

test("the tooltip lists all facts, most important first", () => {
  const holders = { 0: { name: "train", user: "ann", tenant: "red", gpu_count: 8, ends_at: null } };
  const host = { ...node(0), holders };
  const [device] = host.devices as [DeviceRow];
  expect(describeCell({ node: host, device })).toEqual(["gpu-0 · GPU 0 · A100", "busy", "job 0 train · ann, red", "0 % used · 40 GiB of 80 GiB · 61 °C · 400 W"]);
  const [, unnamed, others] = describeCell({ node: host, device: { ...device, jobs: [], tenants: [] } });
  expect([unnamed, others]).toEqual(["busy", "held by another tenant"]);
  const reading = { ...device.reading!, temperature_celsius: null };
  expect(value({ ...device, reading }, "temperature")).toBeNull();
  expect(describeCell({ node: host, device: { ...device, reading } }).at(-1)).toBe("n/a: its driver does not report it");
  expect(model([host], "model").groups[0]?.title).toBe("A100 · 8 GPUs, 2 free");
});

test("arrows move, Enter opens, Escape and blur clear", () => {
  const canvas = document.createElement("canvas");
  const where = layout([{ title: "", nodes: [{ name: "a", cells: 8 }] }], 800, 400);
  const messages: (number | string)[] = [];
  interact(canvas, { layout: () => where, pointed: (cell) => messages.push(cell), opened: (cell) => messages.push(`opened ${cell}`), left: () => messages.push("left") });
  const press = (key: string, more: object = {}): boolean => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true, ...more }));
  for (const key of ["ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "End", "Enter", "Home"]) press(key);
  expect(messages.splice(0)).toEqual([0, 1, 2, 6, 5, 1, 7, "opened 7", 0]);
  expect([press("ArrowRight", { ctrlKey: true }), press("x"), press("ArrowRight")]).toEqual([true, true, false]);
  canvas.dispatchEvent(new Event("blur"));
  press("Escape");
  press("Enter");
  expect(messages).toEqual([1, -1, "left"]);
});

test("the strip counts states, links to the clicked GPU, and loads details for the pointer", () => {
  const region = document.createElement("section");
  Object.defineProperty(region, "clientWidth", { value: 800 });
  document.body.append(region);
  const details = new Map<string, object>();
  const hub = { listen: vi.fn(() => () => undefined), state: () => ({ rows: details }) };
  const view = overviewStrip(region, { hub } as unknown as Page);
  const rows = new Map(nodes(2).map(({ name, devices }) => [name, { indexes: devices.map(({ index }) => index), cells: devices.map(({ cell }) => cell) }]));
  view.draw({ status: "ready", seq: 1, rows, error: null, hasRows: true });
  const link = region.querySelector("a") as HTMLAnchorElement;
  expect(link.getAttribute("aria-label")).toBe("16 GPUs: 4 busy, 4 held but idle, 4 free, 4 unavailable. Open the fleet");
  const at = stripCells([8, 8], 800).cells[11]!;
  link.addEventListener("click", (event) => event.preventDefault());
  link.dispatchEvent(new MouseEvent("click", { clientX: at.x + 1, clientY: at.y + 1 }));
  expect(link.getAttribute("href")).toBe("/fleet/?gpu=gpu-1%2F3");
  // A lost GPU and its replacement have the same index.
  const replaced = new Map(rows).set("gpu-1", { ...rows.get("gpu-1")!, indexes: [0, 1, 3, 3, 4, 5, 6, 7] });
  view.draw({ status: "ready", seq: 2, rows: replaced, error: null, hasRows: true });
  link.dispatchEvent(new MouseEvent("click", { clientX: at.x + 1, clientY: at.y + 1 }));
  expect(link.getAttribute("href")).toBe("/fleet/?gpu=gpu-1%2F3%2F2");
  link.dispatchEvent(new MouseEvent("click", { clientX: 9999, clientY: 0 }));
  expect(link.getAttribute("href")).toBe("/fleet/");
  expect(hub.listen).not.toHaveBeenCalled();
  const lines = (): string[] => {
    link.querySelector("canvas")?.dispatchEvent(new MouseEvent("pointermove", { clientX: at.x + 1, clientY: at.y + 1 }));
    return [...document.querySelectorAll(".tooltip div")].map((line) => line.textContent);
  };
  expect(lines()).toEqual(["gpu-1 · GPU 3", "busy"]);
  for (const row of nodes(2)) details.set(row.name, row);
  expect(lines()).toEqual(describeCell({ node: nodes(2)[1]!, device: nodes(2)[1]!.devices[3]! }));
  expect(hub.listen).toHaveBeenCalledOnce();
  view.close?.();
});

test("nodes are grouped by tenant and by rack, with a group for none", () => {
  const [free, red, both] = nodes(3).map((each, at) => ({ ...each, devices: each.devices.map((device) => ({ ...device, cell: at === 0 ? ("free" as const) : ("busy" as const) })) }));
  both!.devices[0]!.tenants = ["blue"];
  const titles = (grouping: "tenant" | "rack"): string[] => model([free!, { ...red!, labels: { rack: "r1" } }, both!], grouping).groups.map(({ title }) => title.split(" · ")[0] ?? "");
  expect([titles("tenant"), titles("rack")]).toEqual([["no tenant", "red", "several tenants"], ["no label rack", "rack r1"]]);
});

test("the largest owner has the first colour; only the selected GPU is highlighted", () => {
  const host = { ...node(0), holders: { 1: { name: "a", user: "ann", tenant: "red", gpu_count: 1, ends_at: null }, 2: { name: "b", user: "bob", tenant: "red", gpu_count: 2, ends_at: null } } };
  const devices = host.devices.slice(0, 3).map((device, at) => ({ ...device, cell: "busy" as const, jobs: [at === 0 ? 1 : 2] }));
  const { cells } = model([{ ...host, devices }], "none");
  expect([...owners(cells)]).toEqual([["bob", 0], ["ann", 1]]);
  expect(paints(cells, "state", { cell: null, job: null, tenant: null }, "gpu-0/1").map((cell) => cell.isLit)).toEqual([false, true, false]);
});

test("the tooltip flips without room", () => {
  const tooltip = new Tooltip();
  tooltip.show(["one"], 10, -50, 20);
  const box = document.querySelector<HTMLElement>(".tooltip")!;
  expect([box.style.left, box.style.top]).toEqual(["38px", "8px"]);
  Object.defineProperties(box, { offsetWidth: { value: 200 }, offsetHeight: { value: 50 } });
  tooltip.show(["one", "two"], innerWidth - 60, innerHeight, 20);
  expect([box.style.left, box.style.top]).toEqual([`${innerWidth - 268}px`, `${innerHeight - 58}px`]);
  tooltip.close();
  expect(document.querySelector(".tooltip")).toBeNull();
});

// The fleet's panel and table, and navigation between them.
import { describe, expect, test, vi } from "vitest";
import { model } from "../src/pages/fleet/model";
import { Panel } from "../src/pages/fleet/panel";
import { FleetTable } from "../src/pages/fleet/table";
import { fleet } from "../src/pages/fleet/view";
import type { Page } from "../src/live/regions";
import { node, nodes } from "./machines";

test("the panel keeps the focus during updates and reports a missing GPU", () => {
  const box = document.createElement("aside");
  document.body.append(box);
  const requests: unknown[] = [];
  const panel = new Panel(box, { light: (light) => requests.push(light), closed: () => requests.push("closed") });
  const cells = model(nodes(2), "none").cells;
  const light = { cell: null, job: null, tenant: null };
  vi.stubGlobal("fetch", () => Promise.reject(new Error("no server")));
  panel.show(cells[0], cells, light, "gpu-0/0");
  const close = box.querySelector<HTMLElement>("button[data-does=close]");
  close?.focus();
  const { node: host, device } = cells[0]!;
  panel.show({ node: host, device: { ...device, reading: { ...device.reading!, temperature_celsius: 77 } } }, cells, light, "gpu-0/0");
  expect(box.textContent).toContain("77 °C");
  expect(document.activeElement).toBe(close);
  box.querySelector<HTMLElement>("button[data-does=light]")?.click();
  close?.click();
  expect(requests).toEqual([{ job: host.devices[0]?.jobs?.[0] }, "closed"]);
  panel.show(undefined, cells, { ...light, job: 999 }, "nowhere/7");
  expect(box.textContent).toContain("GPU nowhere/7 does not exist");
  expect(box.textContent).toContain("GPUs of job 999: none now");
  panel.show(undefined, cells, light, null);
  expect(box.querySelector(".of-keys")?.textContent, "hidden where there is no keyboard").toContain("Arrow keys");
  panel.close();
  vi.unstubAllGlobals();
});

describe("the table", () => {
  const dark = { cell: null, job: null, tenant: null };
  const [opened, asked]: [string[], string[]] = [[], []];
  const make = (): FleetTable => {
    const table = new FleetTable((name) => opened.push(name), () => undefined, (search) => asked.push(search));
    document.body.replaceChildren(table.element);
    return table;
  };
  const keys = (): (string | undefined)[] => [...document.querySelectorAll<HTMLElement>("tbody tr")].map((tr) => tr.dataset.key);

  test("has the groups of the map as headings", () => {
    make().update(model(nodes(4), "model"), dark, null);
    expect(keys().filter((key) => key?.startsWith("group:"))).toEqual(["group:A100", "group:H100"]);
    expect(keys().length).toBe(34);
  });

  test("shows only matching GPUs, or all with matches marked", () => {
    const table = make();
    const requests = { ...dark, job: 1 };
    table.update(model(nodes(3), "none"), requests, "gpu-1/3");
    expect(keys()).toEqual(Array.from({ length: 8 }, (_, index) => `gpu-1/${index}`));
    expect(table.element.textContent).toContain("8 GPUs of 24: GPUs of job 1");
    expect(table.rowOf("gpu-1/3")?.getAttribute("aria-current")).toBe("true");
    document.querySelector<HTMLElement>(".lit button")?.click();
    table.update(model(nodes(3), "none"), requests, null);
    expect([keys().length, document.querySelectorAll("tr.is-lit").length, document.querySelectorAll("[aria-current]").length]).toEqual([24, 8, 0]);
  });

  test("sorts by a head without groups; unknown values are last, equal ones keep their order", () => {
    const table = make();
    const [one, lost] = [node(0, 7), { ...node(1, 1), state: "lost" as const }];
    const readings = [363, 55, null, 9, 55, 700, 1];
    const devices = one.devices.map((device, at) => ({ ...device, jobs: at < 2 ? [12 - at * 3] : [], tenants: [], reading: { ...node(0).devices[0]!.reading!, power_watts: readings[at]! } }));
    const order = (sort: string): string => {
      table.update(model([{ ...one, devices }, lost], "state"), dark, null, sort);
      return keys().map((key) => key?.replace("gpu-0/", "")).join(" ");
    };
    expect(order("")).toBe("group:lost gpu-1/0 group:online 0 1 2 3 4 5 6");
    expect(order("-power")).toBe("5 0 1 4 3 6 gpu-1/0 2");
    expect(order("power")).toBe("6 3 1 4 0 5 gpu-1/0 2");
    expect(order("-jobs")).toBe("0 1 gpu-1/0 2 3 4 5 6");
    expect([...document.querySelectorAll("th[aria-sort=descending]")].map((th) => th.textContent)).toEqual(["Jobs"]);
    expect(order("no-column")).toBe(order(""));
    const heads = [...document.querySelectorAll<HTMLElement>("th button")];
    expect(heads.length).toBe(document.querySelectorAll("th[scope=col]").length);
    for (const head of heads) head.click();
    expect(asked.join(" ")).toBe("node gpu model state jobs tenants owner -utilisation -memory -temperature -power until");
    for (const head of heads) expect(order(head.dataset.sort ?? ""), head.dataset.sort).toHaveLength(order("power").length);
  });

  test("leaves cells of a free GPU empty", () => {
    const table = make();
    const free = { ...node(0, 1), devices: [{ ...node(0, 1).devices[0]!, cell: "free" as const, jobs: [], tenants: [] }] };
    table.update(model([free], "none"), dark, null);
    const empties = [...table.rowOf("gpu-0/0")!.querySelectorAll("td")].filter((cell) => !cell.hasChildNodes()).map((cell) => cell.dataset.label);
    expect(empties).toEqual(["Jobs", "Tenants", "Owner"]);
  });

  test("has a row for a lost GPU and one for its replacement with the same index", () => {
    const table = make();
    const [lost, replacement] = node(0, 2).devices.map((device) => ({ ...device, index: 3, health: device.index === 0 ? "lost" : "ok" }));
    const cells = model([{ ...node(0), devices: [lost!, replacement!] }], "none");
    table.update(cells, dark, "gpu-0/3/2");
    expect(keys()).toEqual(["gpu-0/3", "gpu-0/3/2"]);
    expect(document.querySelector("[aria-current]")?.textContent).toBe(table.rowOf("gpu-0/3/2")?.textContent);
    expect(table.rowOf("gpu-0/3")?.textContent).toContain("not seen by its node");
  });

  test("applies a requested order under the pointer", () => {
    const table = make();
    const visible = model(nodes(1), "none");
    table.update(visible, dark, null);
    document.querySelector("tbody")?.dispatchEvent(new PointerEvent("pointerenter"));
    table.update(visible, dark, null, "-gpu");
    expect(keys()[0]).toBe("gpu-0/7");
  });

  test("Enter selects the GPU without leaving the page", () => {
    const table = make();
    table.update(model(nodes(1), "none"), dark, null);
    const event = new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true });
    table.rowOf("gpu-0/2")?.dispatchEvent(event);
    expect([opened, event.defaultPrevented]).toEqual([["gpu-0/2"], true]);
  });
});

test("selecting a GPU is a history step and scrolls to a hidden panel", async () => {
  document.body.innerHTML = '<select data-fleet-group><option>none</option></select><section></section><aside data-fleet-panel></aside>';
  const pushed = vi.spyOn(history, "pushState");
  history.replaceState(null, "", "?view=table");
  vi.stubGlobal("fetch", () => Promise.reject(new Error("no server")));
  const went = vi.fn();
  const beside = document.querySelector("aside") as HTMLElement;
  beside.scrollIntoView = went;
  let top = 0;
  beside.getBoundingClientRect = () => ({ top }) as DOMRect;
  const view = fleet(document.querySelector("section") as HTMLElement, {} as Page);
  view.draw({ status: "ready", seq: 1, rows: new Map(nodes(1).map((row) => [row.name, row])), error: null, hasRows: true });
  const choose = (index: number): unknown => document.querySelector(`tr[data-key="gpu-0/${index}"]`)?.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
  choose(2);
  await vi.waitFor(() => expect([location.search, pushed.mock.calls.length, went.mock.calls.length]).toEqual(["?view=table&gpu=gpu-0/2", 1, 0]));
  top = innerHeight;
  choose(3);
  await vi.waitFor(() => expect([location.search, pushed.mock.calls.length, went.mock.calls.length]).toEqual(["?view=table&gpu=gpu-0/3", 1, 1]));
  history.replaceState(null, "", "?view=table");
  dispatchEvent(new Event("popstate"));
  await vi.waitFor(() => expect([location.search, beside.querySelector(".panel-head")]).toEqual(["?view=table", null]));
  document.querySelector<HTMLElement>("[data-sort=power]")?.click();
  await vi.waitFor(() => {
    const sorted = document.querySelector("th[aria-sort=descending]")?.textContent;
    expect([location.search, sorted, pushed.mock.calls.length]).toEqual(["?view=table&sort=-power", "Power", 1]);
  });
  const list = document.querySelector<HTMLSelectElement>(".sort-by select");
  expect(list?.value).toBe("-power");
  list!.value = "gpu";
  list!.dispatchEvent(new Event("change"));
  await vi.waitFor(() => expect([location.search, document.querySelector("th[aria-sort=ascending]")?.textContent]).toEqual(["?view=table&sort=gpu", "GPU"]));
  view.close?.();
  pushed.mockRestore();
  vi.unstubAllGlobals();
});

// The fleet map: layout, hit tests, tooltips and speed.
import { describe, expect, test } from "vitest";
import { LARGEST, type LayoutGroup, columns, hit, layout, neighbour } from "../src/pages/fleet/layout";
import { fits, readAddress, describeSpotlight, writeAddress } from "../src/pages/fleet/address";
import { type Fill, appearance, owner, formatReading, secondsToFree, value } from "../src/pages/fleet/looks";
import { model, paints, describeCell } from "../src/pages/fleet/model";
import { type Context, type Palette, paint } from "../src/pages/fleet/paint";
import { Panel } from "../src/pages/fleet/panel";
import { isDark, ramp } from "../src/pages/fleet/palette";
import { stripCells } from "../src/pages/fleet/strip";
import type { Cell, DeviceRow, NodeRow } from "../src/live/topics";
import { node, nodes } from "./machines";

const groups = (count: number, each = 8): LayoutGroup[] => [
  { title: "", nodes: Array.from({ length: count }, (_, at) => ({ name: `gpu-${at}`, cells: each })) },
];

describe("layout", () => {
  test("1,600 cells fit 1376 × 760", () => {
    const where = layout(groups(200), 1376, 760);
    expect(where.cells.length).toBe(1600);
    expect(where.width).toBeLessThanOrEqual(1376);
    expect(where.height).toBeLessThanOrEqual(760);
    expect(where.size).toBeGreaterThanOrEqual(10);
    // In racks of ten, too, beside the panel.
    const racks = layout(Array.from({ length: 20 }, (_, rack) => ({ title: `rack ${rack}`, nodes: groups(10)[0]?.nodes ?? [] })), 900, 760);
    expect([racks.cells.length, racks.width <= 900, racks.height <= 760]).toEqual([1600, true, true]);
  });

  test("no two cells overlap, and each lies in its card", () => {
    const where = layout([{ title: "a", nodes: [{ name: "x", cells: 3 }, { name: "y", cells: 16 }] }, ...groups(30)], 700, 500);
    const used = new Set<string>();
    for (const cell of where.cells) {
      const card = where.cards[cell.node];
      expect(card && cell.x >= card.x && cell.y >= card.y && cell.x + where.size <= card.x + card.width && cell.y + where.size <= card.y + card.height).toBe(true);
      used.add(`${cell.x},${cell.y}`);
      expect(hit(where, cell.x + where.size / 2, cell.y + where.size / 2)).toBe(where.cells.indexOf(cell));
    }
    expect(used.size).toBe(where.cells.length);
  });

  test("few nodes have large cells, and many extend downwards", () => {
    expect(layout(groups(1), 1376, 760).size).toBe(LARGEST);
    const crowd = layout(groups(2000), 360, 400);
    expect(crowd.height).toBeGreaterThan(400);
    expect(crowd.width).toBeLessThanOrEqual(360);
  });

  test("nodes without a GPU have a card and no cell", () => {
    const where = layout(groups(3, 0), 800, 600);
    expect(where.cards.length).toBe(3);
    expect(where.cells.length).toBe(0);
    expect(neighbour(where, -1, 1, 0)).toBe(-1);
  });

  test("8 cells are 4 by 2", () => {
    expect([1, 2, 4, 8, 16].map(columns)).toEqual([1, 2, 4, 4, 4]);
  });

  test("arrows reach every cell and stay at the borders", () => {
    const where = layout(groups(6), 600, 400);
    let at = 0;
    const received = new Set([at]);
    for (let step = 0; step < 200; step += 1) {
      const right = neighbour(where, at, 1, 0);
      if (right !== at) at = right;
      else {
        for (let left = neighbour(where, at, -1, 0); left !== at; left = neighbour(where, at, -1, 0)) at = left;
        at = neighbour(where, at, 0, 1);
      }
      received.add(at);
    }
    expect(received.size).toBe(where.cells.length);
    expect(neighbour(where, 0, 0, -1)).toBe(0);
  });
});

describe("tooltips", () => {
  test("the most serious condition comes first; a lost node has no data", () => {
    const [device] = node(0).devices as [DeviceRow];
    expect(appearance(device, { state: "online", intent: "open" })).toEqual({ kind: "busy", words: "busy" });
    expect(appearance({ ...device, health: "hot" }, { state: "online", intent: "open" })).toEqual({ kind: "hot", words: "hot, busy" });
    const noted = { ...device, health: "foreign", health_note: "pid 4242 of alice (python)", cell: "unavailable" as const };
    expect(appearance(noted, { state: "online", intent: "open" }).words).toBe("in use by a foreign process: pid 4242 of alice (python)");
    expect(appearance({ ...device, health: "quarantined", cell: "unavailable" }, { state: "online", intent: "open" }).kind).toBe("quarantined");
    expect(appearance({ ...device, cell: "unavailable" }, { state: "online", intent: "cordoned" }).words).toBe("its node is cordoned");
    expect(appearance(device, { state: "lost", intent: "open" }).kind).toBe("unknown");
  });

  test("unknown is n/a, never 0", () => {
    const device = { ...(node(0).devices[0] as DeviceRow), reading: null };
    for (const fill of ["utilisation", "memory", "temperature"] as Fill[]) {
      expect(value(device, fill)).toBeNull();
      expect(formatReading(device, fill)).toBe("n/a");
    }
    expect(describeCell({ node: node(0), device }).join()).toContain("n/a: its agent has not read it yet");
  });

  test("hidden jobs are not shown, but the allocation is", () => {
    const hidden = { ...node(1), devices: node(1).devices.map((device) => ({ ...device, jobs: [], tenants: [], cell: "busy" as Cell })) };
    const [first] = paints(model([hidden], "none").cells, "state", { cell: null, job: null, tenant: null });
    expect([first?.first, first?.second]).toEqual(["held", "by others"]);
  });

  test("groups by model and by state, in order", () => {
    const all = [...nodes(12), { ...node(12), state: "lost" }];
    expect(model(all, "model").groups.map((group) => group.title.split(" · ")[0])).toEqual(["A100", "H100"]);
    expect(model(all, "state").groups.map((group) => group.title.split(" · ")[0])).toEqual(["lost", "online"]);
    expect(model(all, "none").groups[0]?.nodes.map((each) => each.name).slice(1, 4)).toEqual(["gpu-1", "gpu-2", "gpu-3"]);
    const closed = model([{ ...all[0]!, intent: "draining" }], "none").groups[0]?.nodes[0]?.name;
    expect(closed).toBe("gpu-0 ‖");
  });

  test("a free MIG cell shows its size", () => {
    const full = node(1, 4);
    const divided: NodeRow = { ...full, holders: { 1: { name: "train", user: "ann", tenant: "red", gpu_count: 1, ends_at: null } }, devices: full.devices.map((device, at) => ({ ...device, model: at > 0 ? "NVIDIA H100 MIG 1g.10gb" : device.model, cell: "free", jobs: at === 2 ? [1] : [] })) };
    expect(paints(model([divided], "none").cells, "state", { cell: null, job: null, tenant: null }).map((cell) => cell.third)).toEqual(["", "MIG 1g.10gb", "train", "MIG 1g.10gb"]);
  });

  test("matching cells are highlighted, others are dim", () => {
    const visible = paints(model(nodes(3), "none").cells, "state", { cell: null, job: 1, tenant: null });
    expect(visible.filter((cell) => cell.isLit).length).toBe(8);
    expect(visible.filter((cell) => cell.isDim).length).toBe(16);
  });
});

describe("fills", () => {
  const allocated = (ends_at: string | null): NodeRow => ({ ...node(1, 1), holders: { 1: { name: "train", user: "ann", tenant: "red", gpu_count: 1, ends_at } } });
  const busy = (of: NodeRow): DeviceRow => ({ ...(of.devices[0] as DeviceRow), cell: "busy" });

  test("time to free is that of the last job, and unknown without a limit", () => {
    const soon = allocated(new Date(Date.now() + 3_600_000).toISOString());
    expect(secondsToFree(busy(soon), soon)).toBeGreaterThan(3500);
    expect(formatReading(busy(soon), "until", soon)).toMatch(/^within (60 min|1 h)$/);
    expect([formatReading(busy(allocated(null)), "until", allocated(null)), value(busy(allocated(null)), "until", allocated(null))]).toEqual(["n/a", null]);
    expect(formatReading({ ...busy(soon), cell: "free", jobs: [] }, "until", soon)).toBe("free");
  });

  test("owners have colours by use; hidden owners have none", () => {
    const [own, other] = [allocated(null), { ...allocated(null), holders: {} }];
    expect(owner(busy(own), own)).toBe("ann");
    expect(owner({ ...busy(other), jobs: [] }, other)).toBe("another tenant");
    const cells = [{ node: own, device: busy(own) }, { node: own, device: { ...busy(own), cell: "free" as Cell } }];
    expect(paints(cells, "owner", { cell: null, job: null, tenant: null }).map((cell) => cell.owner)).toEqual([0, null]);
  });

  test("watts are on a scale of 700", () => {
    expect(value(busy(allocated(null)), "power")).toBeCloseTo(400 / 700);
    expect(formatReading(busy(allocated(null)), "power")).toBe("400 W");
  });
});

describe("the address", () => {
  test("round trips through the URL", () => {
    const requests = readAddress("?group=rack&fill=power&view=table&gpu=a/3&job=7&health=hot&model=NVIDIA+A100");
    expect([requests.group, requests.fill, requests.isTable, requests.gpu, requests.light.job, requests.light.health]).toEqual(["rack", "power", true, "a/3", 7, "hot"]);
    expect(describeSpotlight(requests.light)).toBe("GPUs of job 7, hot GPUs, A100");
    expect(readAddress(writeAddress(requests, ""))).toEqual(requests);
    expect(writeAddress(readAddress(""), "?group=rack&wall=1")).toBe("?wall=1");
  });

  test("an unknown grouping or fill is ignored", () => {
    expect(readAddress("?group=evil&fill=%00&job=-3").group).toBe("none");
    expect(readAddress("?job=1e99x").light.job).toBeNull();
  });

  test("all criteria must match", () => {
    const [device] = node(1).devices;
    const cell = { node: node(1), device: { ...(device as DeviceRow), cell: "busy" as Cell } };
    expect(fits(cell, { cell: "busy", job: 1, tenant: "red", node: "gpu-1" })).toBe(true);
    expect(fits(cell, { cell: "busy", job: 2, tenant: null })).toBe(false);
    expect(["A100", "V100"].map((model) => fits({ ...cell, device: { ...cell.device, model: "A100" } }, { cell: null, job: null, tenant: null, model }))).toEqual([true, false]);
  });
});

test("groups are side by side only if their titles fit", () => {
  const racks = Array.from({ length: 20 }, (_, at): LayoutGroup => ({ title: `rack r${at} · 80 GPUs, 70 free`, nodes: groups(10)[0]?.nodes ?? [] }));
  const letters = racks.map((rack) => rack.title.length);
  for (const width of [366, 700, 1150]) {
    const where = layout(racks, width, 640);
    const [left, ...others] = [...new Set(where.titles.map((title) => title.x))].sort((a, b) => a - b);
    expect(others.every((x, at) => x - (at === 0 ? (left ?? 0) : (others[at - 1] ?? 0)) >= 7 * Math.max(...letters))).toBe(true);
    expect(where.titles.every((title) => title.x + title.width <= width + 1)).toBe(true);
  }
});

test("the strip has a cell per GPU within its width", () => {
  for (const [nodes, width] of [[200, 1174], [4, 1174], [1, 300], [1000, 1174], [200, 328]] as const) {
    const { cells, height } = stripCells(Array.from({ length: nodes }, () => 8), width);
    expect(cells.length).toBe(nodes * 8);
    expect(Math.max(...cells.map((cell) => cell.x + cell.width))).toBeLessThanOrEqual(width);
    expect(Math.max(...cells.map((cell) => cell.y + cell.height))).toBe(height);
    expect(new Set(cells.map((cell) => `${cell.x},${cell.y}`)).size).toBe(nodes * 8);
  }
});

test("a ramp goes from one colour to the other", () => {
  expect([isDark("#1f3d99"), isDark("#eef2fb")]).toEqual([true, false]);
  expect(ramp("#000000", "rgb(255, 100, 0)", 3)).toEqual(["rgb(0, 0, 0)", "rgb(128, 50, 0)", "rgb(255, 100, 0)"]);
});

test("the panel shows the number of highlighted GPUs", () => {
  const box = document.createElement("aside");
  const panel = new Panel(box, { light: () => undefined, closed: () => undefined });
  const { cells } = model(nodes(8), "none");
  const label = (light: object): string => {
    panel.show(undefined, cells, { cell: null, job: null, tenant: null, ...light }, null);
    return box.querySelector(".lit span")?.textContent ?? "";
  };
  expect(label({ cell: "free" })).toBe("Highlighted: free: 16 GPUs on 8 nodes");
  expect(label({ node: "gpu-3" })).toBe("Highlighted: node gpu-3: 8 GPUs on gpu-3");
  cells.find(({ device }) => device.cell === "free")!.device.is_slowed = true;
  expect(label({ cell: "free" }), "no job may have that one").toMatch(/16 GPUs on 8 nodes, 1 of them too hot to take new jobs$/);
  expect(label({ job: 999 })).toBe("Highlighted: GPUs of job 999: none now");
  panel.close();
});

test("recolouring draws each of 1,600 cells a bounded number of times", () => {
  let calls = 0;
  const count = (): void => void (calls += 1);
  const context = Object.fromEntries(
    ["fillRect", "strokeRect", "clearRect", "beginPath", "moveTo", "lineTo", "closePath", "fill", "stroke", "fillText"].map((name) => [name, count]),
  ) as unknown as Context;
  const colours: Palette = {
    busy: "b", heldIdle: "h", free: "f", unavailable: "u", text: "t", muted: "m", onBusy: "o", line: "l", accent: "a", surface: "s", red: "r", amber: "y",
    owners: ["x"], ramp: ramp("#000000", "#ffffff", 32), onRamp: [],
  };
  const drawn = (size: number, colour: "state" | "utilisation"): number => {
    const { groups: cards, cells } = model(nodes(size), "none");
    calls = 0;
    paint(context, layout(cards, 1376, 760), paints(cells, colour, { cell: null, job: null, tenant: null }), colours);
    return calls;
  };
  for (const colour of ["state", "utilisation"] as const) {
    expect(drawn(200, colour)).toBeGreaterThanOrEqual(1_600);
    expect(drawn(200, colour)).toBeLessThan(8 * 1_600);
  }
});

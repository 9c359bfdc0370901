// Cluster pages: morphing, groups of nodes, filters and chart data.
import { beforeEach, expect, test } from "vitest";
import { startFilter } from "../src/ui/filter";
import { morphChildren } from "../src/ui/morph";
import { chartOf } from "../src/pages/node/node";
import type { Page } from "../src/live/regions";
import { groupedNodes, nodeGroup, nodes } from "../src/pages/nodes/nodes";
import { usageChart } from "../src/pages/usage/usage";
import type { NodeRow } from "../src/live/topics";

let old: HTMLElement;

function become(html: string): void {
  const next = document.createElement("div");
  next.innerHTML = html;
  morphChildren(old, next);
}

beforeEach(() => {
  old = document.createElement("div");
  document.body.replaceChildren(old);
});

test("morph makes any element equal to the target", () => {
  const states = ["", "<p>a</p>", "<p>a</p>b<ul><li id='x'>1</li><li id='y'>2</li></ul>", "<ul><li id='y' class='k'>2</li><li id='z'>3</li><li id='x'>1</li></ul>", "text"];
  for (const from of states) {
    for (const to of states) {
      old.innerHTML = from;
      become(to);
      const expected = document.createElement("div");
      expected.innerHTML = to;
      expect(old.innerHTML).toBe(expected.innerHTML);
    }
  }
});

test("keyed rows keep their elements when they move", () => {
  old.innerHTML = "<i data-key='a'>1</i><i data-key='b'>2</i>";
  const [a, b] = [...old.children];
  become("<i data-key='b'>2</i><i data-key='new'>0</i><i data-key='a'>9</i>");
  expect([...old.children].map((row) => row.getAttribute("data-key"))).toEqual(["b", "new", "a"]);
  expect([old.children[0], old.children[2]]).toEqual([b, a]);
  expect(a?.textContent).toBe("9");
});

test("morph keeps open details, typed values and script-drawn parts", () => {
  old.innerHTML = "<details><summary>s</summary><form><input name='note' value=''></form></details><div data-view='chart'><canvas></canvas></div>";
  const details = old.querySelector("details") as HTMLDetailsElement;
  const input = old.querySelector("input") as HTMLInputElement;
  details.open = true;
  input.value = "new fan";
  input.focus();
  become("<details><summary>t</summary><form><input name='note' value=''><b>x</b></form></details><div data-view='chart'></div>");
  expect(details.open).toBe(true);
  expect(input.value).toBe("new fan");
  expect(document.activeElement).toBe(input);
  expect(old.querySelector("summary")?.textContent).toBe("t");
  expect(old.querySelector("canvas")).not.toBeNull();
});

test("morph keeps the hidden field that says which text the user edits", () => {
  const form = (lines: string): string => `<form><input type="hidden" name="were" value="${lines}"><textarea name="typed">${lines}</textarea></form>`;
  old.innerHTML = form("a=1");
  const [were, typed] = [old.querySelector("input") as HTMLInputElement, old.querySelector("textarea") as HTMLTextAreaElement];
  typed.value = "changed, and back";
  typed.value = "a=1";
  become(form("a=1\nb=2"));
  expect([were.value, typed.value]).toEqual(["a=1\nb=2", "a=1\nb=2"]);
  typed.value = "a=1\nb=2\nc=3";
  become(form("b=2"));
  expect([were.value, typed.value]).toEqual(["a=1\nb=2", "a=1\nb=2\nc=3"]);
});

test("morph keeps the version of the numbers that the user edits", () => {
  const form = (version: number, batch: number): string => `<form><input type="hidden" name="version" value="${version}"><input name="max_batch" type="number" value="${batch}"></form>`;
  old.innerHTML = form(1, 4);
  const [version, batch] = [...old.querySelectorAll("input")];
  become(form(2, 8));
  expect([version?.value, batch?.value]).toEqual(["2", "8"]);
  if (batch) batch.value = "16";
  become(form(3, 2));
  expect([version?.value, batch?.value]).toEqual(["2", "16"]);
});

test("nodes are grouped by what an admin must do", () => {
  const node = (name: string, more: Partial<NodeRow> = {}, health = "ok"): NodeRow =>
    ({ name, state: "online", intent: "open", devices: [{ health }], ...more }) as unknown as NodeRow;
  const rows = [node("n10"), node("n2"), node("n1", { intent: "cordoned" }), node("n3", {}, "hot"), node("n4", { state: "lost" })];
  expect(rows.map(nodeGroup)).toEqual(["open", "open", "closed", "attention", "attention"]);
  expect(groupedNodes(rows).map((line) => line.key)).toEqual(["group:attention", "n3", "n4", "group:closed", "n1", "group:open", "n2", "n10"]);
  expect(groupedNodes(rows.slice(0, 2)).map((line) => line.key)).toEqual(["n2", "n10"]);
});

test("the list of nodes shows the URL's group, counts all groups, and no free resources of a lost node", () => {
  const node = (name: string, more: Partial<NodeRow> = {}): NodeRow =>
    ({ name, state: "online", intent: "open", pretend: false, cpu_cores: 8, cpu_cores_free: 4, memory_mb: 2048, memory_mb_free: 1024, last_seen_at: null, jobs: [], devices: [], ...more }) as unknown as NodeRow;
  const rows = new Map([node("n1"), node("n2", { state: "lost" }), node("n3", { intent: "cordoned" })].map((row) => [row.name, row]));
  const shown = (search: string): (string | undefined)[] => {
    history.replaceState(null, "", `/nodes/${search}`);
    old.innerHTML = '<b data-node-count="all"></b><b data-node-count="attention"></b><section></section>';
    const region = old.querySelector("section") as HTMLElement;
    nodes(region, {} as Page).draw({ status: "ready", seq: 1, rows, error: null, hasRows: true });
    return [...region.querySelectorAll<HTMLElement>("tbody tr")].map((tr) => tr.dataset.key);
  };
  expect(shown("?group=nonsense")).toEqual(["group:attention", "n2", "group:closed", "n3", "group:open", "n1"]);
  expect([...old.querySelectorAll("b[data-node-count]")].map((count) => count.textContent)).toEqual(["3", "1"]);
  expect(shown("?group=attention")).toEqual(["n2"]);
  expect(old.querySelectorAll(".na[title='the node is lost: no job can start on it']")).toHaveLength(2);
});

test("a missing reading is no number, and MiB become GiB", () => {
  const messages = [{ at: "2026-01-31T08:00:00Z", memory_mean: 2048, utilisation_mean: null }, { at: "2026-01-31T08:05:00Z", memory_mean: null, utilisation_mean: 40 }];
  expect(chartOf({ id: 1, index: 3 }, messages, "memory", "5m", 0, 1).lines[0]?.values).toEqual([2, null]);
  expect(chartOf({ id: 1, index: 3 }, messages, "utilisation", "5m", 0, 1).lines[0]?.values).toEqual([null, 40]);
  expect(chartOf({ id: 1, index: 3 }, messages, "nonsense", "5m", 0, 1).unit).toBe("%");
});

test("days are bars of a day each, in UTC", () => {
  const chart = usageChart({ days: ["2026-03-01", "2026-03-02"], lines: [{ label: "nlp", values: [1, 2] }] }, "allocated by day", "GPU-hours");
  expect([chart.kind, chart.times, chart.step]).toEqual(["bars", [1772323200, 1772409600], 86400]);
});

test("the filter is stored in and read from the URL", () => {
  const page = "<input data-filter=''><section data-live='nodes'><table class='rows'><tbody><tr><td>gpu-1</td></tr><tr><td>gpu-2</td></tr></tbody></table></section>";
  history.replaceState(null, "", "/nodes/?group=open&q=gpu-2");
  old.innerHTML = page;
  startFilter();
  const hidden = (): boolean[] => [...old.querySelectorAll("tr")].map((row) => row.hidden === true);
  const input = old.querySelector("input") as HTMLInputElement;
  expect([input.value, hidden()]).toEqual(["gpu-2", [true, false]]);
  input.value = "gpu-1";
  input.dispatchEvent(new Event("input", { bubbles: true }));
  expect([location.search, hidden()]).toEqual(["?group=open&q=gpu-1", [false, true]]);
  input.value = "";
  input.dispatchEvent(new Event("input", { bubbles: true }));
  expect([location.search, hidden()]).toEqual(["?group=open", [false, false]]);
});

// The log on the page: a window of a larger log, with server search (A40).
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { Screen } from "../src/pages/job/log/screen";
import { Search } from "../src/pages/job/log/search";
import { jobLog } from "../src/pages/job/log/view";
import { LogWindow } from "../src/pages/job/log/window";
import { note, size } from "../src/pages/job/log/words";
import type { Page, View } from "../src/live/regions";
import { NOTHING } from "../src/live/store";

const bytes = (words: string): Uint8Array => new TextEncoder().encode(words);
const WIDTH = 100;
/** A log of 100 MB that is made where it is read: each line says its number. */
const HUGE = 1_000_000 * WIDTH;
/** The window of these tests: with the page's own each would take long. */
const MOST = 100_000;
const line = (number: number): string => `line ${number} `.padEnd(WIDTH - 1, "x");

function huge(from: number, to: number): Uint8Array {
  const [first, last] = [Math.floor(from / WIDTH), Math.ceil(to / WIDTH)];
  const lines = Array.from({ length: last - first }, (_, at) => `${line(first + at)}\n`).join("");
  return bytes(lines).subarray(from - first * WIDTH, to - first * WIDTH);
}

describe("window", () => {
  let box: HTMLElement;
  let visible: LogWindow;
  const numbers = (): number[] => [...box.querySelectorAll(".line")].map((each) => Number(/^line (\d+)/.exec(each.textContent ?? "")?.[1] ?? -1)).filter((number) => number >= 0);

  beforeEach(() => {
    box = document.createElement("pre");
    visible = new LogWindow(new Screen(box), MOST);
  });

  test("text is never markup", () => {
    visible.begin({ bytes: bytes("<img src=x onerror=alert(1)>\n"), offset: 0 });
    expect(box.querySelector("img")).toBeNull();
  });

  test("moves through a large log without losing or repeating lines", () => {
    let [at, isTrimmed] = [HUGE - 6_500, false];
    visible.begin({ bytes: huge(at, HUGE), offset: at });
    for (let step = 0; step < 20; step += 1) {
      const { start } = visible;
      const isGone = visible.above({ bytes: huge(start - 26_200, start), offset: start - 26_200 });
      isTrimmed ||= isGone;
      expect(box.textContent?.length).toBeLessThan(MOST * 1.3);
      const now = numbers();
      expect(now).toEqual(Array.from({ length: now.length }, (_, k) => (now[0] ?? 0) + k));
      expect(now[0]).toBe(visible.start / WIDTH);
      expect((now.at(-1) ?? 0) + 1).toBe(visible.next / WIDTH);
    }
    expect(visible.start).toBeLessThan(HUGE - 400_000);
    expect(isTrimmed).toBe(true);
    for (let step = 0; step < 25; step += 1) {
      at = visible.next;
      const to = Math.min(HUGE, at + 26_200);
      visible.below({ bytes: huge(at, to), offset: at });
      const now = numbers();
      expect(now).toEqual(Array.from({ length: now.length }, (_, k) => (now[0] ?? 0) + k));
      expect(now[0]).toBe(visible.start / WIDTH);
      expect(box.textContent?.length).toBeLessThan(MOST * 1.3);
    }
    expect(numbers().at(-1)).toBe(999_999);
  }, 120_000);

  test("opens around a match and highlights it", () => {
    const offset = 123_456 * WIDTH + 7;
    const from = offset - 5_000;
    visible.beginAround({ bytes: huge(from, offset + 5_000), offset: from }, offset);
    expect(box.querySelector(".is-found")?.textContent).toBe(line(123_456));
    expect(numbers()[0]).toBe(visible.start / WIDTH);
    visible.beginAround({ bytes: bytes("needle"), offset: 0 }, 0);
    expect(box.querySelector(".is-found")?.textContent).toBe("needle");
  });

  test("output without newlines is counted, broken and dropped", () => {
    visible.begin({ bytes: new Uint8Array(), offset: 0 });
    for (let part = 0; part < 200; part += 1) visible.below({ bytes: bytes("y".repeat(20_000)), offset: part * 20_000 });
    expect(box.querySelectorAll(".line").length).toBeGreaterThan(5);
    expect(box.textContent?.length).toBeLessThan(MOST * 1.3);
    expect(box.lastElementChild?.textContent?.length).toBeLessThan(10_000);
    expect(visible.next).toBe(4_000_000);
    expect(visible.start).toBeGreaterThan(3_700_000);
  });

  test("empty lines count towards the limit", () => {
    visible.begin({ bytes: new Uint8Array(), offset: 0 });
    for (let part = 0; part < 8; part += 1) visible.below({ bytes: bytes("\n".repeat(700)), offset: part * 700 });
    expect(box.querySelectorAll(".line").length).toBeLessThan(3_500);
  });

  test("a part of many short lines stays until the next one comes", () => {
    const part = (from: number): Uint8Array => bytes(Array.from({ length: 5_000 }, (_, at) => `line ${String(from + at).padStart(4, "0")}\n`).join(""));
    visible.begin({ bytes: new Uint8Array(), offset: 0 });
    for (const from of [0, 5_000]) {
      visible.below({ bytes: part(from), offset: from * 10 });
      expect([numbers().length, numbers()[0], visible.start]).toEqual([5_000, from, from * 10]);
    }
  });

  test("an unfinished line is replaced by its continuation", () => {
    visible.begin({ bytes: bytes("10%"), offset: 0 });
    visible.below({ bytes: bytes("\r100%\n"), offset: 3 });
    expect(box.textContent).toBe("100%");
  });

  test("matches are marked, also in new lines", () => {
    const screen = new Screen(box);
    visible = new LogWindow(screen);
    visible.begin({ bytes: bytes("loss 0.5\nepoch 1\n"), offset: 0 });
    screen.search("LOSS");
    visible.below({ bytes: bytes("loss 0.4 loss\nepoch 2"), offset: 17 });
    expect(box.querySelectorAll("mark").length).toBe(3);
    screen.search("(.*|loss");
    expect(box.querySelectorAll("mark").length).toBe(0);
    visible.below({ bytes: bytes("\nİi [i"), offset: 39 });
    screen.search("I");
    expect([...box.querySelectorAll("mark")].map((mark) => mark.textContent)).toEqual(["i", "i"]);
    screen.search("[i");
    expect([...box.querySelectorAll("mark")].map((mark) => mark.textContent)).toEqual(["[i"]);
    screen.search("");
    expect(box.querySelectorAll("mark").length).toBe(0);
    expect(box.textContent).toBe("loss 0.5epoch 1loss 0.4 lossepoch 2İi [i");
  });
});

describe("search", () => {
  const stream = { job: 7, attempt: 1, rank: 0 };
  const answer = (messages: object): Response => new Response(JSON.stringify({ hits: [], next_offset: 0, next_line: 0, size: 1000, is_all: false, ...messages }));

  test("continues until the end, each line once", async () => {
    const requests: URLSearchParams[] = [];
    const answers = [answer({ hits: [[2, 8, "a"]], next_offset: 500, next_line: 40 }), answer({ hits: [[2, 9, "a"], [77, 900, "b"]], next_offset: 990, next_line: 80, is_all: true })];
    const search = new Search(stream, "a b", () => undefined, async (url) => {
      requests.push(new URL(url, "http://x").searchParams);
      return answers.shift() as Response;
    });
    await search.go();
    expect(requests.map((each) => [each.get("q"), each.get("log"), each.get("offset"), each.get("line")])).toEqual([["a b", "1.0", "0", "0"], ["a b", "1.0", "500", "40"]]);
    expect([...search.hits.keys()]).toEqual([2, 77]);
    expect(search.isAll).toBe(true);
  });

  test("stops with enough matches and continues on request", async () => {
    let next = 0;
    const search = new Search(stream, "x", () => undefined, async () => {
      next += 1;
      return answer({ hits: Array.from({ length: 200 }, (_, at) => [next * 200 + at, next, "x"]), next_offset: next, next_line: next * 200 });
    });
    await search.go();
    expect([next, search.hits.size, search.isAll]).toEqual([1, 200, false]);
    await search.more();
    expect([next, search.hits.size]).toEqual([2, 400]);
  });

  test("a failure can be retried, and a stuck server ends the loop", async () => {
    let [asked, isDown] = [0, true];
    const search = new Search(stream, "x", () => undefined, async () => {
      asked += 1;
      return isDown || asked > 2 ? new Response("", { status: 503 }) : answer({});
    });
    await search.go();
    expect([search.problem, search.isAll]).toEqual(["the server answered 503", false]);
    isDown = false;
    await search.more();
    expect([asked, search.problem]).toEqual([2, ""]);
  });
});

test("the note below the log", () => {
  const now = { problem: "", isGone: false, hasStreams: true, isOpen: true, isComplete: true, isEmpty: false, above: 0, below: 0 };
  expect(note(now, null)).toBe("End of the log.");
  expect(note({ ...now, isEmpty: true }, null)).toBe("The job wrote nothing.");
  expect(note({ ...now, hasStreams: false }, null)).toBe("No output yet.");
  expect(note({ ...now, above: 99 << 20, below: 2048 }, null)).toBe("99.0 MiB before this, 2 KiB after it.");
  const sought = { text: "x", found: 1, looked: 1 << 20, size: 5 << 20, isAll: false, isBusy: true, problem: "" };
  expect(note({ ...now, isGone: true, problem: "Deleted." }, sought)).toBe("Deleted. 1 line with “x” in the first 1.0 MiB of 5.0 MiB, searching…");
  expect(size(1)).toBe("1 byte");
});

describe("the region", () => {
  let region: HTMLElement;
  let view: View;
  let requests: string[];
  const element = <E extends HTMLElement>(selector: string): E => region.querySelector<E>(selector) as E;
  const button = (words: string): HTMLButtonElement => [...region.querySelectorAll("button")].find((each) => each.textContent === words) as HTMLButtonElement;
  const noteText = (): string => element(".log-note").textContent ?? "";
  const rows = (at: number) => ({ ...NOTHING, status: "ready" as const, known: true, rows: new Map([["log:1.0", { attempt: 1, rank: 0, size: at }]]) });
  const shows = (number: number): boolean => (element("pre").textContent ?? "").includes(`line ${number} `);

  beforeEach(() => {
    requests = [];
    vi.stubGlobal("fetch", async (url: string): Promise<Response> => {
      requests.push(url);
      const query = new URL(url, "http://x").searchParams;
      if (url.includes("/log-hits/")) return new Response(JSON.stringify({ hits: [[501, 50_000, line(500)]], next_offset: HUGE, next_line: 1_000_000, size: HUGE, is_all: true }));
      const params = Number(query.get("offset"));
      const from = params < 0 ? HUGE + params : params;
      const to = Math.min(HUGE, from + Number(query.get("limit")));
      return new Response(huge(from, to) as BodyInit, { headers: { "X-Log-Offset": `${from}`, "X-Log-Next-Offset": `${to}`, "X-Log-Size": `${HUGE}`, "X-Log-Complete": `${to === HUGE}` } });
    });
    region = document.createElement("section");
    region.dataset.live = "job:7";
    document.body.replaceChildren(region);
    view = jobLog(region, {} as Page);
    view.draw(rows(HUGE));
  });

  afterEach(() => {
    view.close?.();
    vi.unstubAllGlobals();
  });

  test("a match near the start of 100 MB is opened and left again", async () => {
    await vi.waitFor(() => expect(shows(999_999)).toBe(true), 20_000);
    expect(noteText()).toBe("End of the log. 95.3 MiB before this.");
    const search = element<HTMLInputElement>("input[type=search]");
    search.value = "line 500 ";
    search.dispatchEvent(new Event("input"));
    await vi.waitFor(() => expect(noteText()).toContain("1 line with “line 500”."), 20_000);
    element<HTMLButtonElement>(".log-hits button").click();
    await vi.waitFor(() => expect(element(".is-found").textContent).toBe(line(500)), 20_000);
    expect(shows(999_999)).toBe(false);
    expect(element<HTMLInputElement>("input[type=checkbox]").checked).toBe(false);
    // What is written meanwhile does not tear the reader away.
    view.draw(rows(HUGE + 5_000));
    await vi.waitFor(() => expect(button("Load later").disabled).toBe(false), 20_000);
    const previous = requests.length;
    button("Load later").click();
    await vi.waitFor(() => expect(shows(4_000)).toBe(true), 20_000);
    expect(requests.length).toBe(previous + 1);
    expect(shows(500)).toBe(true);
    const follow = element<HTMLInputElement>("input[type=checkbox]");
    follow.checked = true;
    follow.dispatchEvent(new Event("change"));
    await vi.waitFor(() => expect(shows(999_999)).toBe(true), 20_000);
    expect(shows(500)).toBe(false);
  }, 120_000);

  test("Load earlier works with a full window", async () => {
    await vi.waitFor(() => expect(shows(999_999)).toBe(true), 20_000);
    for (let step = 0; step < 8; step += 1) {
      await vi.waitFor(() => expect(button("Load earlier").disabled).toBe(false), 20_000);
      const previous = requests.length;
      button("Load earlier").click();
      await vi.waitFor(() => expect(requests.length).toBe(previous + 1), 20_000);
    }
    await vi.waitFor(() => expect(shows(980_000)).toBe(true), 20_000);
    await vi.waitFor(() => expect(button("Load later").disabled).toBe(false), 20_000);
    expect(shows(999_999)).toBe(false);
  }, 120_000);
});

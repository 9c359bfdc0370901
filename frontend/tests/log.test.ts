// The log: colours, control sequences, UTF-8 and line boundaries anywhere, reading in order, search.
import { beforeEach, describe, expect, test, vi } from "vitest";
import { Ansi, type Piece } from "../src/log/ansi";
import { Lines, wholeFrom } from "../src/log/lines";
import { MOST_CHARACTERS, Screen } from "../src/log/screen";
import { type LogPart, Tail, logUrl } from "../src/log/tail";
import { jobLog } from "../src/log/view";
import type { Page } from "../src/regions";
import { NOTHING } from "../src/store";

const text = (pieces: readonly Piece[]): string => pieces.map((piece) => piece.text).join("");
const bytes = (words: string): Uint8Array => new TextEncoder().encode(words);

describe("ansi", () => {
  const read = (words: string): Piece[] => new Ansi().feed(words);

  test("plain text is one plain piece", () => {
    expect(read("hello\n")).toEqual([{ text: "hello\n", classes: "" }]);
  });

  test("colours, bold, and the way back", () => {
    expect(read("\x1b[1;31mbad\x1b[22m dim\x1b[39m x\x1b[0m.")).toEqual([
      { text: "bad", classes: "ansi-bold ansi-fg-1" },
      { text: " dim", classes: "ansi-fg-1" },
      { text: " x", classes: "" },
      { text: ".", classes: "" },
    ]);
    expect(read("\x1b[91;104mx\x1b[mz").map((piece) => piece.classes)).toEqual(["ansi-fg-9 ansi-bg-12", ""]);
  });

  test("256 and true colours", () => {
    expect(read("\x1b[38;5;196mx")[0]?.colour).toBe("rgb(255, 0, 0)");
    expect(read("\x1b[48;5;240mx")[0]?.background).toBe("rgb(88, 88, 88)");
    expect(read("\x1b[38;5;9mx")[0]?.classes).toBe("ansi-fg-9");
    expect(read("\x1b[38;2;1;2;300mx\x1b[1my")[0]?.colour).toBe("rgb(1, 2, 255)");
    expect(read("\x1b[38;2;1;2;3;1mx")[0]?.classes).toBe("ansi-bold");
  });

  test("every other sequence is dropped: cursor, title, links, charset, bells", () => {
    const words = "a\x1b[2Kb\x1b[10;20Hc\x1b]0;title\x07d\x1b]8;;http://x\x1b\\e\x1b(Bf\x07g\x1b[?25lh\x1bMi\x1b[>4;1mj";
    expect(text(read(words))).toBe("abcdefghij");
  });

  test("sequences cut anywhere are the same as whole ones", () => {
    const whole = "one \x1b[1;38;5;196mtwo\x1b[0m three\x1b]0;t\x07 \x1b[32mfour\x1b[K five";
    const expected = read(whole);
    for (let at = 0; at <= whole.length; at += 1) {
      const ansi = new Ansi();
      const parts = [...ansi.feed(whole.slice(0, at)), ...ansi.feed(whole.slice(at))];
      expect(text(parts)).toBe(text(expected));
      const styles = (list: readonly Piece[]): string[] => list.flatMap((p) => [...p.text].map((c) => `${c}${p.classes}${p.colour ?? ""}`));
      expect(styles(parts)).toEqual(styles(expected));
    }
  });

  test("a sequence that never ends does not swallow the log", () => {
    const ansi = new Ansi();
    let shown = "";
    for (let at = 0; at < 10; at += 1) shown += text(ansi.feed(`\x1b]${"x".repeat(2000)}`));
    expect(shown.length).toBeGreaterThan(5000);
  });
});

describe("lines", () => {
  test("UTF-8 cut at every byte gives the same lines", () => {
    const whole = bytes("añ€😀\nzweite Zeile – ü\r\nrest");
    for (let at = 0; at <= whole.length; at += 1) {
      const lines = new Lines();
      const done = [...lines.feed(whole.subarray(0, at)), ...lines.feed(whole.subarray(at))];
      expect(done.map(text)).toEqual(["añ€😀", "zweite Zeile – ü"]);
      expect(text(lines.open)).toBe("rest");
    }
  });

  test("bytes that are no UTF-8 are shown as such and harm nothing", () => {
    const done = new Lines().feed(new Uint8Array([0x61, 0xff, 0x62, 0x0a]));
    expect(done.map(text)).toEqual(["a\ufffdb"]);
  });

  test("a return overwrites: of a progress bar the last state is kept", () => {
    const lines = new Lines();
    expect(lines.feed(bytes(" 10%\r 50%\r100%\ndone\n")).map(text)).toEqual(["100%", "done"]);
    lines.feed(bytes("1%\r"));
    expect(text(lines.open)).toBe("1%");
    lines.feed(bytes("2%"));
    expect(text(lines.open)).toBe("2%");
  });

  test("a tail begins at a whole line, or at least at a whole character", () => {
    expect(wholeFrom(bytes("cut\nwhole\n"))).toBe(4);
    expect(wholeFrom(bytes("😀x").subarray(1))).toBe(3);
    expect(wholeFrom(bytes("only\n"))).toBe(0);
  });
});

describe("tail", () => {
  /** A server with a log that can grow, and the requests that it got. */
  function server(content: { data: Uint8Array }, most = 1 << 20) {
    const asked: string[] = [];
    const get = async (url: string): Promise<Response> => {
      asked.push(url);
      const query = new URL(url, "http://x").searchParams;
      const [size, given] = [content.data.length, Number(query.get("offset"))];
      const from = given < 0 ? Math.max(0, size + given) : Math.min(given, size);
      const piece = content.data.slice(from, from + Math.min(most, Number(query.get("limit"))));
      const headers = { "X-Log-Offset": `${from}`, "X-Log-Next-Offset": `${from + piece.length}`, "X-Log-Size": `${size}`, "X-Log-Complete": "false" };
      return new Response(piece, { headers });
    };
    return { asked, get };
  }

  test("opens at the end and follows in order, without a byte twice or lost", async () => {
    const content = { data: bytes("x".repeat(100_000)) };
    const { asked, get } = server(content, 1000);
    const got: LogPart[] = [];
    const tail = new Tail({ job: 17, attempt: 1, rank: 0 }, { more: (part) => got.push(part), failed: (words) => expect(words).toBe(""), gone: () => undefined }, get);
    await tail.grown(100_000);
    content.data = bytes("x".repeat(103_500));
    await Promise.all([tail.grown(103_000), tail.grown(103_500)]);
    expect(asked[0]).toBe(logUrl({ job: 17, attempt: 1, rank: 0 }, -65536, 65536));
    expect(got[0]?.offset).toBe(100_000 - 65536);
    for (let at = 1; at < got.length; at += 1) expect(got[at]?.offset).toBe(got[at - 1]?.next);
    expect(got.at(-1)?.next).toBe(103_500);
  });

  test("a server that promises more than it has is not asked in a circle", async () => {
    const { asked, get } = server({ data: bytes("ab") });
    const tail = new Tail({ job: 1, attempt: 1, rank: 0 }, { more: () => undefined, failed: () => undefined, gone: () => undefined }, get);
    await tail.grown(50);
    expect(asked.length).toBeLessThan(4);
  });

  test("a failure is told, and reading goes on when the log grows", async () => {
    const content = { data: bytes("ab") };
    const { get } = server(content);
    let isDown = true;
    const said: string[] = [];
    const got: LogPart[] = [];
    const tail = new Tail({ job: 1, attempt: 1, rank: 0 }, { more: (part) => got.push(part), failed: (words) => said.push(words), gone: () => undefined }, (url) =>
      isDown ? Promise.resolve(new Response("", { status: 503 })) : get(url),
    );
    await tail.grown(2);
    isDown = false;
    await tail.grown(3);
    expect(said).toEqual(["the server answered 503"]);
    expect(got[0]?.next).toBe(2);
  });

  test("a log that was deleted is told in the server's words, and not asked for again", async () => {
    const said: string[] = [];
    let asked = 0;
    const tail = new Tail({ job: 1, attempt: 1, rank: 0 }, { more: () => undefined, failed: () => undefined, gone: (words) => said.push(words) }, () => {
      asked += 1;
      return Promise.resolve(new Response(JSON.stringify({ detail: "this log was deleted at noon, by its age" }), { status: 410 }));
    });
    await tail.grown(2);
    await tail.grown(3);
    expect([said, asked]).toEqual([["this log was deleted at noon, by its age"], 1]);
  });
});

describe("screen", () => {
  let box: HTMLElement;
  let screen: Screen;
  const plain = (words: string) => [{ text: words, classes: "" }];
  const shown = (): (string | null)[] => [...box.querySelectorAll<HTMLElement>(".line:not([hidden])")].map((line) => line.textContent);

  beforeEach(() => {
    box = document.createElement("pre");
    screen = new Screen(box);
  });

  test("text is never markup", () => {
    screen.append([plain("<img src=x onerror=alert(1)>")], []);
    expect(box.querySelector("img")).toBeNull();
  });

  test("search shows and marks what has the text, also what comes later", () => {
    screen.append([plain("loss 0.5"), plain("epoch 1")], []);
    screen.search("LOSS");
    screen.append([plain("loss 0.4 loss"), plain("epoch 2")], []);
    expect(shown().filter(Boolean)).toEqual(["loss 0.5", "loss 0.4 loss"]);
    expect(box.querySelectorAll("mark").length).toBe(3);
    expect(screen.hits).toBe(2);
    screen.search("");
    expect(box.querySelectorAll("mark").length).toBe(0);
    expect(shown().filter(Boolean)).toEqual(["loss 0.5", "epoch 1", "loss 0.4 loss", "epoch 2"]);
  });

  test("the page holds no more than it can", () => {
    const line = plain("x".repeat(9_999));
    for (let at = 0; at < 15; at += 1) screen.append(Array.from({ length: 10 }, () => line), []);
    expect(box.textContent?.length).toBeLessThanOrEqual(MOST_CHARACTERS);
    expect(screen.isTrimmed).toBe(true);
  });

  test("an unfinished line is replaced by its continuation", () => {
    screen.append([], plain("10%"));
    screen.append([plain("100%")], []);
    expect(box.textContent).toBe("100%");
  });
});

test("a search says how far it looked, and goes through all of the log when asked", async () => {
  const whole = bytes(`needle at the top\n${`${"hay ".repeat(200)}\n`.repeat(350)}`);
  vi.stubGlobal("fetch", async (url: string): Promise<Response> => {
    const asked = new URL(url, "http://x").searchParams;
    const given = Number(asked.get("offset"));
    const from = given < 0 ? Math.max(0, whole.length + given) : given;
    const piece = whole.slice(from, from + Number(asked.get("limit")));
    return new Response(piece, { headers: { "X-Log-Offset": `${from}`, "X-Log-Next-Offset": `${from + piece.length}`, "X-Log-Size": `${whole.length}`, "X-Log-Complete": "true" } });
  });
  const region = document.createElement("section");
  region.dataset.live = "job:7";
  document.body.replaceChildren(region);
  const view = jobLog(region, {} as Page);
  view.draw({ ...NOTHING, status: "ready", known: true, rows: new Map([["log:1.0", { attempt: 1, rank: 0, size: whole.length }]]) });
  const note = (): string => region.querySelector(".log-note")?.textContent ?? "";
  await vi.waitFor(() => expect(region.querySelectorAll(".line").length).toBeGreaterThan(50), 20_000);
  const search = region.querySelector<HTMLInputElement>("input[type=search]") as HTMLInputElement;
  search.value = "needle";
  search.dispatchEvent(new Event("input"));
  expect(note()).toMatch(/0 lines with “needle” in the last 6[34] KiB shown/);
  const further = [...region.querySelectorAll("button")].find((button) => button.textContent === "Search all of it");
  expect(further?.hidden).toBe(false);
  further?.click();
  await vi.waitFor(() => expect(note()).toContain("1 line with “needle”."), 20_000);
  expect(further?.hidden).toBe(true);
  view.close?.();
  vi.unstubAllGlobals();
}, 60_000);

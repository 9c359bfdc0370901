// Reading a log: colours, control sequences, UTF-8, line boundaries, order and bounds.
import { describe, expect, test } from "vitest";
import { Ansi, type Piece } from "../src/pages/job/log/ansi";
import { Lines, MAX_LINE, wholeFrom } from "../src/pages/job/log/lines";
import { type LogPart, Tail, logUrl } from "../src/pages/job/log/tail";

const text = (pieces: readonly Piece[]): string => pieces.map((piece) => piece.text).join("");
const bytes = (words: string): Uint8Array => new TextEncoder().encode(words);

describe("ansi", () => {
  const read = (words: string): Piece[] => new Ansi().feed(words);

  test("plain text is one plain piece", () => {
    expect(read("hello\n")).toEqual([{ text: "hello\n", classes: "" }]);
  });

  test("colours, bold and reset", () => {
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
  test("parameters with colons, and colours of underlines", () => {
    for (const colour of ["38:2::1:2:3", "38:2:1:2:3", "38:2:0:1:2:3"]) expect(read(`\x1b[${colour};1mx`)[0], colour).toEqual({ text: "x", classes: "ansi-bold", colour: "rgb(1, 2, 3)" });
    expect(read("\x1b[48:5:240mx")[0]?.background).toBe("rgb(88, 88, 88)");
    expect(read("\x1b[31;4:3mx\x1b[4:0my").map((piece) => piece.classes)).toEqual(["ansi-underline ansi-fg-1", "ansi-fg-1"]);
    for (const colour of ["58;5;1", "58;2;3;4;9", "58:2::1:2:3", "58:5:1"]) expect(read(`\x1b[${colour}mx`)[0]?.classes, colour).toBe("");
  });

  test("every other sequence is dropped: cursor, title, links, charset, bells", () => {
    const words = "a\x1b[2Kb\x1b[10;20Hc\x1b]0;title\x07d\x1b]8;;http://x\x1b\\e\x1b(Bf\x07g\x1b[?25lh\x1bMi\x1b[>4;1mj";
    expect(text(read(words))).toBe("abcdefghij");
  });

  test("sequences cut anywhere are the same as whole ones", () => {
    const full = "one \x1b[1;38;5;196mtwo\x1b[0m three\x1b]0;t\x07 \x1b[32mfour\x1b[K five";
    const expected = read(full);
    for (let at = 0; at <= full.length; at += 1) {
      const ansi = new Ansi();
      const parts = [...ansi.feed(full.slice(0, at)), ...ansi.feed(full.slice(at))];
      expect(text(parts)).toBe(text(expected));
      const styles = (list: readonly Piece[]): string[] => list.flatMap((p) => [...p.text].map((c) => `${c}${p.classes}${p.colour ?? ""}`));
      expect(styles(parts)).toEqual(styles(expected));
    }
  });

  test("an endless sequence does not swallow the log", () => {
    const ansi = new Ansi();
    let visible = "";
    for (let at = 0; at < 10; at += 1) visible += text(ansi.feed(`\x1b]${"x".repeat(2000)}`));
    expect(visible.length).toBeGreaterThan(5000);
  });
});

describe("lines", () => {
  test("UTF-8 cut at every byte gives the same lines", () => {
    const full = bytes("añ€😀\nzweite Zeile – ü\r\nrest");
    for (let at = 0; at <= full.length; at += 1) {
      const lines = new Lines();
      const results = [...lines.feed(full.subarray(0, at)), ...lines.feed(full.subarray(at))];
      expect(results.map(text)).toEqual(["añ€😀", "zweite Zeile – ü"]);
      expect(text(lines.open)).toBe("rest");
    }
  });

  test("invalid UTF-8 is shown as replacement", () => {
    const results = new Lines().feed(new Uint8Array([0x61, 0xff, 0x62, 0x0a]));
    expect(results.map(text)).toEqual(["a\ufffdb"]);
  });

  test("a return overwrites the line, as progress bars do", () => {
    const lines = new Lines();
    expect(lines.feed(bytes(" 10%\r 50%\r100%\ndone\n")).map(text)).toEqual(["100%", "done"]);
    lines.feed(bytes("1%\r"));
    expect(text(lines.open)).toBe("1%");
    lines.feed(bytes("2%"));
    expect(text(lines.open)).toBe("2%");
  });

  test("endless output is broken into lines with merged pieces", () => {
    const lines = new Lines();
    const full = `${"x".repeat(MAX_LINE - 1)}${"😀".repeat(3 * MAX_LINE)}`;
    const results = lines.feed(bytes(full));
    expect(results.length).toBeGreaterThan(5);
    for (const line of [...results, lines.open]) {
      expect(text(line).length).toBeLessThanOrEqual(MAX_LINE);
      expect(text(line)).not.toMatch(/^[\udc00-\udfff]|[\ud800-\udbff]$/);
    }
    expect([...results, lines.open].map(text).join("")).toBe(full);
    for (let at = 0; at < 100; at += 1) lines.feed(bytes("."));
    expect(lines.open.length).toBe(1);
    expect(lines.feed(bytes("\nnext\n")).map(text).slice(-1)).toEqual(["next"]);
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

  test("opens at the end and follows without loss or duplication", async () => {
    const content = { data: bytes("x".repeat(100_000)) };
    const { asked, get } = server(content, 1000);
    const got: LogPart[] = [];
    const tail = new Tail({ job: 17, attempt: 1, rank: 0 }, { more: (part) => got.push(part), failed: (words) => expect(words).toBe(""), showDeleted: () => undefined }, get);
    await tail.grown(100_000);
    content.data = bytes("x".repeat(103_500));
    await Promise.all([tail.grown(103_000), tail.grown(103_500)]);
    expect(asked[0]).toBe(logUrl({ job: 17, attempt: 1, rank: 0 }, -65536, 65536));
    expect(got[0]?.offset).toBe(100_000 - 65536);
    for (let at = 1; at < got.length; at += 1) expect(got[at]?.offset).toBe(got[at - 1]?.next);
    expect(got.at(-1)?.next).toBe(103_500);
  });

  test("a far-behind reader restarts at the end and reports the skipped size", async () => {
    const content = { data: new Uint8Array(100) };
    const { asked, get } = server(content);
    const parts: [number, boolean, number][] = [];
    const tail = new Tail({ job: 1, attempt: 1, rank: 0 }, { more: (part, isFirst, skipped) => parts.push([part.offset, isFirst, skipped]), failed: (words) => expect(words).toBe(""), showDeleted: () => undefined }, get);
    await tail.grown(100);
    content.data = new Uint8Array(30 << 20);
    await tail.grown(content.data.length);
    const begun = content.data.length - 65536;
    expect(parts).toEqual([[0, true, 0], [begun, true, begun - 100]]);
    expect(asked.length).toBe(2);
    content.data = new Uint8Array((30 << 20) + 500_000);
    await tail.grown(content.data.length);
    expect(parts.slice(2).map(([, isFirst]) => isFirst)).toEqual([false, false]);
  });

  test("reads nothing automatically while the user reads elsewhere", async () => {
    const content = { data: bytes("one") };
    const { asked, get } = server(content);
    let mayGoOn = true;
    const tail = new Tail({ job: 1, attempt: 1, rank: 0 }, { more: () => undefined, failed: () => undefined, showDeleted: () => undefined, mayGoOn: () => mayGoOn }, get);
    await tail.grown(3);
    mayGoOn = false;
    content.data = bytes("one two");
    await tail.grown(7);
    expect([asked.length, tail.next, tail.size]).toEqual([1, 3, 7]);
    await tail.later();
    expect(tail.next).toBe(7);
  });

  test("an empty answer ends the loop", async () => {
    const { asked, get } = server({ data: bytes("ab") });
    const tail = new Tail({ job: 1, attempt: 1, rank: 0 }, { more: () => undefined, failed: () => undefined, showDeleted: () => undefined }, get);
    await tail.grown(50);
    expect(asked.length).toBeLessThan(4);
  });

  test("a failure is reported, and reading continues when the log grows", async () => {
    const content = { data: bytes("ab") };
    const { get } = server(content);
    let isDown = true;
    const messages: string[] = [];
    const got: LogPart[] = [];
    const tail = new Tail({ job: 1, attempt: 1, rank: 0 }, { more: (part) => got.push(part), failed: (words) => messages.push(words), showDeleted: () => undefined }, (url) =>
      isDown ? Promise.resolve(new Response("", { status: 503 })) : get(url),
    );
    await tail.grown(2);
    isDown = false;
    await tail.grown(3);
    expect(messages).toEqual(["the server answered 503"]);
    expect(got[0]?.next).toBe(2);
  });

  test("a deleted log shows the server's sentence and is not requested again", async () => {
    const messages: string[] = [];
    let asked = 0;
    const tail = new Tail({ job: 1, attempt: 1, rank: 0 }, { more: () => undefined, failed: () => undefined, showDeleted: (words) => messages.push(words) }, () => {
      asked += 1;
      return Promise.resolve(new Response(JSON.stringify({ detail: "this log was deleted at noon, by its age" }), { status: 410 }));
    });
    await tail.grown(2);
    await tail.grown(3);
    expect([messages, asked]).toEqual([["this log was deleted at noon, by its age"], 1]);
  });
});


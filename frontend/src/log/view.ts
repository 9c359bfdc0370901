// The log's region: joins the stream's choice, tail, screen, search and follow.
import { h, plural } from "../dom";
import type { MakeView } from "../regions";
import type { LogRow } from "../topics";
import { Lines, wholeFrom } from "./lines";
import { Screen } from "./screen";
import { type LogPart, TAIL_BYTES, Tail } from "./tail";

const EARLIER_BYTES = 4 * TAIL_BYTES;

export const jobLog: MakeView = (region) => {
  const job = Number(region.dataset.job ?? region.dataset.live?.split(":")[1]);
  const { pre, stream, search, follow, earlier } = controls(region);
  const wrap = region.querySelector<HTMLInputElement>("[data-log-wrap]");
  wrap?.addEventListener("change", () => pre.classList.toggle("is-long", !wrap.checked));
  const note = h("p", { class: "log-note muted small", role: "status" });
  const further = h("button", { type: "button", class: "small", hidden: true }, "Search all of it");
  pre.after(note, further);
  const screen = new Screen(pre);
  let rows: LogRow[] = [];
  let tail: Tail | null = null;
  // An address that names one has chosen it.
  const asked = new URLSearchParams(location.search).get("log");
  let lines = new Lines();
  let [start, chosen, hasChosen, problem, isGone] = [0, "", asked !== null, "", false];
  pre.textContent = "";
  screen.clear();

  let isSearching = false;
  const isFull = (): boolean => screen.isTrimmed || !screen.hasRoom;
  const kib = (): string => `${Math.max(1, Math.round(screen.size / 1024))} KiB`;

  const say = (): void => {
    const words = [
      problem,
      isGone ? "" : rows.length === 0 ? "No output yet." : tail?.isComplete ? (screen.isEmpty ? "It wrote nothing." : "The end.") : tail !== null && screen.isEmpty ? "No output yet." : "",
      search.value !== "" ? `${plural(screen.hits, "line")} with “${search.value}”${start > 0 || screen.isTrimmed ? ` in the last ${kib()} shown` : ""}.` : "",
      search.value !== "" && isFull() && (start > 0 || screen.isTrimmed) ? "The page holds no more: gpusched logs shows all, and so does the file." : "",
    ];
    further.hidden = search.value === "" || start === 0 || isFull() || isSearching;
    note.textContent = words.filter(Boolean).join(" ");
    earlier.disabled = start === 0 || isFull() || isSearching;
    earlier.title = isFull() ? "the page holds as much as it can; the command gpusched logs shows all" : "";
  };

  const toEnd = (): void => {
    if (follow.checked) pre.scrollTop = pre.scrollHeight;
  };

  const more = (part: LogPart, isFirst: boolean): void => {
    let { bytes } = part;
    problem = "";
    if (isFirst) {
      lines = new Lines();
      screen.clear();
      const skipped = part.offset > 0 ? wholeFrom(bytes) : 0;
      start = part.offset + skipped;
      bytes = bytes.subarray(skipped);
    }
    screen.append(lines.feed(bytes, part.isComplete), lines.open);
    toEnd();
    say();
  };

  const failed = (words: string): void => {
    problem = `The log could not be read: ${words}. It is tried again when it changes.`;
    say();
  };

  const gone = (words: string): void => {
    screen.clear();
    problem = `${words.charAt(0).toUpperCase()}${words.slice(1)}.`;
    isGone = true;
    say();
  };

  const choose = (key: string): void => {
    if (key === chosen) return;
    chosen = key;
    tail?.end();
    screen.clear();
    [start, problem, isGone] = [0, "", false];
    const [attempt, rank] = key.split(".").map(Number);
    region.querySelector("[data-log-file]")?.setAttribute("href", `/api/v1/jobs/${job}/logs?attempt=${attempt}&rank=${rank}&download=true`);
    tail = attempt === undefined || rank === undefined ? null : new Tail({ job, attempt, rank }, { more, failed, gone });
    grow();
  };

  const grow = (): void => {
    const row = rows.find((each) => keyOf(each) === chosen);
    void tail?.grown(row?.size ?? 0).then(say);
  };

  stream.addEventListener("change", () => {
    hasChosen = true;
    history.replaceState(null, "", `?tab=log&log=${stream.value}`);
    choose(stream.value);
  });
  follow.addEventListener("change", toEnd);
  search.addEventListener("input", () => {
    screen.search(search.value.trim());
    toEnd();
    say();
  });
  pre.addEventListener("scroll", () => {
    // Scrolling up stops following; scrolling to the end follows again.
    follow.checked = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24;
  });
  /** Reads the piece before what is shown; false if there is none to go on with. */
  const readEarlier = async (): Promise<boolean> => {
    const reading = tail;
    if (reading === null || start === 0) return false;
    follow.checked = false;
    try {
      const part = await reading.earlier(start, EARLIER_BYTES);
      if (reading !== tail) return false;
      const skipped = part.offset > 0 ? wholeFrom(part.bytes) : 0;
      const piece = new Lines();
      const done = piece.feed(part.bytes.subarray(skipped), true);
      screen.prepend(piece.open.length > 0 ? [...done, piece.open] : done);
      start = part.offset + skipped;
    } catch (error) {
      failed(error instanceof Error ? error.message : "no answer");
      return false;
    }
    say();
    return start > 0 && !isFull();
  };
  earlier.addEventListener("click", () => {
    earlier.disabled = true;
    void readEarlier();
  });
  further.addEventListener("click", () => void searchFurther());
  const searchFurther = async (): Promise<void> => {
    isSearching = true;
    say();
    while (search.value !== "" && (await readEarlier()));
    isSearching = false;
    say();
  };

  return {
    draw(state) {
      rows = [...state.rows].filter(([key]) => key.startsWith("log:")).map(([, row]) => row as LogRow);
      rows.sort((a, b) => b.attempt - a.attempt || a.rank - b.rank);
      const selected = stream.value;
      fill(stream, rows);
      const isKnown = rows.some((row) => keyOf(row) === selected);
      const latest = rows[0] === undefined ? "" : keyOf(rows[0]);
      // Who chose a stream keeps it; else a new attempt is followed.
      stream.value = isKnown && (hasChosen || chosen === "") ? selected : latest;
      if (stream.value !== chosen) choose(stream.value);
      else grow();
      say();
    },
    close: () => tail?.end(),
  };
};

const keyOf = (row: LogRow): string => `${row.attempt}.${row.rank}`;

function fill(select: HTMLSelectElement, rows: readonly LogRow[]): void {
  const wanted = rows.map(keyOf).join();
  if ([...select.options].map((option) => option.value).join() === wanted && rows.length > 0) return;
  const options = rows.map((row) => h("option", { value: keyOf(row) }, `attempt ${row.attempt} · rank ${row.rank}`));
  select.replaceChildren(...(options.length > 0 ? options : [h("option", { value: "" }, "no attempt yet")]));
}

/** The region's own controls, or new ones where its template has none. */
function controls(region: HTMLElement) {
  const find = <E extends HTMLElement>(selector: string): E | null => region.querySelector<E>(selector);
  const pre = find<HTMLPreElement>("pre.log") ?? h("pre", { class: "log", tabindex: 0 });
  const stream = find<HTMLSelectElement>("[data-log-stream], select") ?? h("select", { "aria-label": "Attempt and rank" });
  const search = find<HTMLInputElement>("[data-log-search]") ?? h("input", { type: "search", placeholder: "Search", "aria-label": "Search the log" });
  const follow = find<HTMLInputElement>("[data-log-follow]") ?? h("input", { type: "checkbox", checked: true });
  const earlier = find<HTMLButtonElement>("[data-log-earlier]") ?? h("button", { type: "button", class: "small" }, "Earlier");
  const bar = h("div", { class: "toolbar" });
  for (const control of [stream, search, follow, earlier]) {
    if (!control.isConnected) bar.append(control === follow ? h("label", {}, follow, " follow") : control);
  }
  if (bar.childElementCount > 0) region.prepend(bar);
  if (!pre.isConnected) region.append(pre);
  return { pre, stream, search, follow, earlier };
}

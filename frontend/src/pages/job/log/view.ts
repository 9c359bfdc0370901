// The log view: stream selection, tail, window, search and follow.
import type { MakeView, View } from "../../../live/regions";
import type { TopicState } from "../../../live/store";
import type { JobDetail, LogRow } from "../../../live/topics";
import { type Controls, controls, fill, keyOf } from "./controls";
import { Hits } from "./hits";
import { Screen } from "./screen";
import { type Hit, Search } from "./search";
import { type LogPart, MAX_BEHIND, TAIL_BYTES, Tail } from "./tail";
import { LogWindow } from "./window";
import { note, size } from "./words";

const EARLIER_BYTES = 4 * TAIL_BYTES;
const PAUSE_MS = 300;
const AT_END_PX = 24;

export const jobLog: MakeView = (region) => new LogView(region);

class LogView implements View {
  private readonly at: Controls;
  private readonly job: number;
  private readonly screen: Screen;
  private readonly logWindow: LogWindow;
  private readonly hits = new Hits((hit) => void this.goTo(hit));
  private rows: LogRow[] = [];
  private tail: Tail | null = null;
  private search: Search | null = null;
  private chosen = "";
  private readonly requested = new URLSearchParams(location.search).get("log") ?? "";
  // A stream in the URL counts as chosen.
  private hasChosen = this.requested !== "";
  private problem = "";
  private isGone = false;
  private isBusy = false;
  /** Whether the user views a part before the end of the log. */
  private isApart = false;
  private typing: ReturnType<typeof setTimeout> | undefined;

  constructor(region: HTMLElement) {
    this.job = Number(region.dataset.live?.split(":")[1]);
    this.at = controls(region);
    this.at.pre.before(this.hits.element);
    this.screen = new Screen(this.at.pre);
    this.logWindow = new LogWindow(this.screen);
    this.listen();
  }

  draw(state: TopicState): void {
    this.rows = [...state.rows].filter(([key]) => key.startsWith("log:")).map(([, row]) => row as LogRow);
    this.rows.sort((a, b) => b.attempt - a.attempt || a.rank - b.rank);
    const { name, stream } = this.at;
    const job = state.rows.get("job") as JobDetail | undefined;
    name.textContent = job?.array_id ? job.name : "";
    name.hidden = name.textContent === "";
    const selected = this.chosen === "" ? this.requested : stream.value;
    fill(stream, this.rows);
    const isKnown = this.rows.some((row) => keyOf(row) === selected);
    const latest = this.rows[0] === undefined ? "" : keyOf(this.rows[0]);
    // Keep a chosen stream; else follow a new attempt.
    stream.value = isKnown && (this.hasChosen || this.chosen === "") ? selected : latest;
    if (stream.value !== this.chosen) this.choose(stream.value);
    else this.grow();
    this.updateNote();
  }

  close(): void {
    clearTimeout(this.typing);
    this.tail?.end();
    this.search?.end();
  }

  private listen(): void {
    const { pre, stream, search, follow, wrap, earlier, later, further } = this.at;
    wrap.addEventListener("change", () => pre.classList.toggle("is-long", !wrap.checked));
    stream.addEventListener("change", () => {
      this.hasChosen = true;
      history.replaceState(history.state, "", `?tab=log&log=${stream.value}`);
      this.choose(stream.value);
    });
    follow.addEventListener("change", () => follow.checked && void this.toEnd());
    earlier.addEventListener("click", () => void this.alone(() => this.earlier()));
    later.addEventListener("click", () => void this.alone(async () => this.tail?.later()));
    further.addEventListener("click", () => void this.search?.more());
    search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.seek(), PAUSE_MS);
    });
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.hits.step(event.shiftKey ? -1 : 1);
    });
    pre.addEventListener("scroll", () => {
      // Scrolling up stops following; scrolling to the log's end follows again.
      follow.checked = (follow.checked || this.isAtEnd()) && pre.scrollHeight - pre.scrollTop - pre.clientHeight < AT_END_PX;
    });
  }

  private choose(key: string): void {
    this.close();
    this.chosen = key;
    this.screen.clear();
    [this.problem, this.isGone, this.tail, this.isApart] = ["", false, null, false];
    const [attempt, rank] = key.split(".").map(Number);
    this.at.file.href = `/api/v1/jobs/${this.job}/logs?attempt=${attempt}&rank=${rank}&download=true`;
    this.at.file.hidden = rank === undefined;
    if (attempt !== undefined && rank !== undefined) {
      this.logWindow.begin({ bytes: new Uint8Array(), offset: 0 });
      this.tail = new Tail({ job: this.job, attempt, rank }, {
        more: (part, isFirst, skipped) => this.more(part, isFirst, skipped),
        failed: (words) => this.showProblem(`The log could not be read: ${words}. The page tries again when the log changes.`),
        showDeleted: (words) => this.showDeleted(words),
        mayGoOn: () => this.mayGoOn(),
      });
    }
    this.seek();
    this.grow();
  }

  private grow(): void {
    const logSize = this.rows.find((each) => keyOf(each) === this.chosen)?.size ?? 0;
    this.search?.grown(logSize);
    void this.tail?.grown(logSize).then(() => this.updateNote());
  }

  /** Do not move the view of a user who reads an earlier part; new output waits for Load later. */
  private mayGoOn(): boolean {
    const { tail, logWindow: logWindow, at } = this;
    return at.follow.checked || (!this.isApart && !logWindow.isFull && tail !== null && tail.size - tail.next <= MAX_BEHIND);
  }

  private more(part: LogPart, isFirst: boolean, skipped: number): void {
    if (isFirst) this.logWindow.begin(part);
    else this.logWindow.below(part);
    if (this.isAtEnd()) this.isApart = false;
    this.problem = skipped > 0 ? `… ${size(skipped)} skipped: written while this page was hidden.` : isFirst ? "" : this.problem.startsWith("…") ? this.problem : "";
    if (this.at.follow.checked) this.at.pre.scrollTop = this.at.pre.scrollHeight;
    this.updateNote();
  }

  private showProblem(words: string): void {
    this.problem = words;
    this.updateNote();
  }

  private showDeleted(words: string): void {
    this.screen.clear();
    this.isGone = this.at.file.hidden = true;
    this.showProblem(`${words.charAt(0).toUpperCase()}${words.slice(1)}.`);
  }

  /** Run with the buttons disabled. */
  private async alone(run: () => Promise<unknown>): Promise<void> {
    this.isBusy = true;
    this.updateNote();
    await run();
    this.isBusy = false;
    this.updateNote();
  }

  private async earlier(): Promise<void> {
    const { tail, logWindow: logWindow } = this;
    this.at.follow.checked = false;
    await tail?.earlier(logWindow.start, EARLIER_BYTES, (part) => {
      if (!logWindow.above(part)) return;
      tail.backTo(logWindow.next);
      this.isApart = true;
    });
  }

  private async toEnd(): Promise<void> {
    if (!this.isAtEnd()) await this.alone(async () => this.tail?.toEnd());
    this.at.pre.scrollTop = this.at.pre.scrollHeight;
  }

  private async goTo(hit: Hit): Promise<void> {
    this.at.follow.checked = false;
    const show = (part: LogPart): void => {
      this.logWindow.beginAround(part, hit.offset);
      this.isApart = !this.isAtEnd();
    };
    await this.alone(async () => this.tail?.around(hit.offset, EARLIER_BYTES, show));
  }

  private seek(): void {
    const text = this.at.search.value.trim();
    this.search?.end();
    this.hits.clear();
    this.screen.search(text);
    const search = text === "" || this.tail === null ? null : new Search(this.tail.stream, text, () => this.showHits(search));
    this.search = search;
    void search?.go();
    this.updateNote();
  }

  private showHits(search: Search | null): void {
    if (search === null || search !== this.search) return;
    this.hits.show(search.hits.values(), search.text);
    this.updateNote();
  }

  private isAtEnd(): boolean {
    return this.tail === null || this.tail.next >= this.tail.size;
  }

  private updateNote(): void {
    const { tail, search, logWindow: logWindow } = this;
    const [isOpen, below] = [tail !== null && tail.size >= 0, this.isAtEnd() ? 0 : (tail?.size ?? 0) - (tail?.next ?? 0)];
    const standing = { problem: this.problem, isGone: this.isGone, hasStreams: this.rows.length > 0, isOpen, isComplete: tail?.isComplete ?? false, isEmpty: this.screen.isEmpty, above: logWindow.start, below };
    this.at.note.textContent = note(standing, search === null ? null : { text: search.text, found: search.hits.size, looked: search.looked, size: search.size, isAll: search.isAll, isBusy: search.isBusy, problem: search.problem });
    this.at.earlier.disabled = logWindow.start === 0 || this.isBusy || this.isGone;
    this.at.later.disabled = below === 0 || this.isBusy || this.isGone;
    this.at.further.hidden = search === null || search.isAll || search.isBusy;
    this.at.further.textContent = search?.problem === "" ? "Show more matches" : "Try again";
  }
}

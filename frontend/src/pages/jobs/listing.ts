// The jobs that match the URL: pages from REST, updated by the feed.
import { request, unexpected, whyFailed } from "../../ui/fetch_errors";
import { KINDS } from "../../ui/constants";
import { serverNow } from "../../ui/time";
import type { JobRow } from "../../live/topics";

export const PAGE = 100;
/** Filters of GET /api/v1/jobs in the URL. */
const FILTERS = ["tenant", "user", "state", "name", "array", "submitted_after", "submitted_before"];

/** Return the query for GET /api/v1/jobs, in a fixed order. */
export function restQuery(search: string): string {
  const params = new URLSearchParams(search);
  const query = new URLSearchParams();
  for (const name of FILTERS) {
    const value = params.get(name)?.trim() ?? "";
    if (value !== "") query.set(name, value);
  }
  return query.toString();
}

/** Return the states of the query; empty: all. */
export function statesOf(query: string): readonly string[] {
  const words = (new URLSearchParams(query).get("state") ?? "").split(",").filter(Boolean);
  return words.flatMap((word): readonly string[] => (KINDS as Readonly<Record<string, readonly string[]>>)[word] ?? [word]);
}

/** The answer of GET /api/v1/jobs/count, with its time. */
export interface Total {
  jobs: number;
  is_more: boolean;
  with_elements: number | null;
  at: string;
}

/** Read a time of the URL as the server does: in UTC unless it names an offset, whose + can arrive as a space. */
function momentOf(text: string): number {
  const time = text.replace(/(T\S+) /, "$1+").replace(" ", "T");
  return Date.parse(/T[\d:.]+$/.test(time) ? `${time}Z` : time);
}

/** Return whether a job of the feed matches the query, by the rules of the server. */
export function fits(row: JobRow, query: string): boolean {
  const params = new URLSearchParams(query);
  const states = statesOf(query);
  const is = (name: "tenant" | "user"): boolean => !params.has(name) || params.get(name) === row[name];
  // The feed has no array ids.
  if (params.has("array")) return false;
  const at = Date.parse(row.submitted_at);
  const [submittedAfter, submittedBefore] = ["submitted_after", "submitted_before"].map((name) => momentOf(params.get(name) ?? ""));
  if (at < (submittedAfter ?? Number.NaN) || at >= (submittedBefore ?? Number.NaN)) return false;
  return (states.length === 0 || states.includes(row.state)) && is("tenant") && is("user") && row.name.toLowerCase().includes((params.get("name") ?? "").toLowerCase());
}

/** Merge rows, newest first: the feed overrides rows read earlier. `isWhole`: nothing is older. */
export function merged(read: ReadonlyMap<number, JobRow>, feed: ReadonlyMap<string, JobRow>, query: string, isWhole: boolean): JobRow[] {
  const result = new Map(read);
  const oldest = isWhole ? 0 : Math.min(...read.keys());
  for (const row of feed.values()) {
    if (!fits(row, query)) {
      // The feed has no array elements, so it cannot judge them.
      if (!query.includes("array=")) result.delete(row.id);
    } else if (row.id >= oldest || read.size === 0) result.set(row.id, row);
  }
  return [...result.values()].sort((a, b) => b.id - a.id);
}

/** The first page of jobs, as the page carries it. */
export interface FirstPage {
  items?: JobRow[];
  next_cursor?: string | null;
  total?: Total | null;
  problem?: string;
}

export class Listing {
  readonly read = new Map<number, JobRow>();
  problem = "";
  /** The total, if there are more than were read. */
  total: Total | null = null;
  private cursor: string | null = null;
  private pages = 0;
  private isAsking = false;
  private isOver = false;

  constructor(
    readonly query: string,
    private readonly changed: () => void,
    private readonly get: (url: string) => Promise<Response> = request,
  ) {}

  /** Begin with the page's own rows, without a request. */
  begin({ items, next_cursor, total, problem }: FirstPage): void {
    for (const row of items ?? []) this.read.set(row.id, row);
    [this.cursor, this.total, this.problem, this.pages] = [next_cursor ?? null, total ?? null, problem ?? "", 1];
  }

  get hasOlder(): boolean {
    return this.cursor !== null;
  }

  /** The number of rows of a new load. */
  get maxRows(): number {
    return Math.max(1, this.pages) * PAGE;
  }

  get isRead(): boolean {
    return this.pages > 0;
  }

  close(): void {
    this.isOver = true;
  }

  /** Reload the pages read so far, at least the first. */
  async reload(): Promise<void> {
    const rows = new Map<number, JobRow>();
    let cursor: string | null = null;
    const pages = Math.max(1, this.pages);
    await this.ask(async () => {
      for (let page = 0; page < pages && (page === 0 || cursor !== null); page += 1) cursor = await this.page(cursor, rows);
      this.read.clear();
      for (const [id, row] of rows) this.read.set(id, row);
      this.cursor = cursor;
      this.pages = pages;
    });
    await this.count();
  }

  async count(): Promise<void> {
    if (!this.hasOlder || this.isOver) return;
    const response = await this.get(`/api/v1/jobs/count?${this.query}`).catch(() => null);
    // Keep the last total if there is no answer.
    if (response?.ok !== true) return;
    this.total = { ...((await response.json()) as Omit<Total, "at">), at: new Date(serverNow()).toISOString() };
    if (!this.isOver) this.changed();
  }

  async older(): Promise<void> {
    if (this.cursor === null) return;
    await this.ask(async () => {
      this.cursor = await this.page(this.cursor, this.read);
      this.pages += 1;
    });
  }

  private async ask(work: () => Promise<void>): Promise<void> {
    if (this.isAsking || this.isOver) return;
    this.isAsking = true;
    try {
      await work();
      this.problem = "";
    } catch (error) {
      this.problem = whyFailed(error);
    } finally {
      this.isAsking = false;
    }
    if (!this.isOver) this.changed();
  }

  private async page(cursor: string | null, into: Map<number, JobRow>): Promise<string | null> {
    const params = new URLSearchParams(this.query);
    params.set("limit", String(PAGE));
    if (cursor !== null) params.set("cursor", cursor);
    const response = await this.get(`/api/v1/jobs?${params}`);
    // A proxy in between answers with a page of its own.
    const answer = (await response.json().catch(() => ({}))) as { items?: JobRow[]; next_cursor?: string | null; detail?: string };
    if (!response.ok || answer.items === undefined) throw answer.detail === undefined ? unexpected(response) : new Error(answer.detail);
    for (const row of answer.items) into.set(row.id, row);
    return answer.next_cursor ?? null;
  }
}

// Positions in a long grouped list, computed without elements.

export interface Group {
  group: string;
  /** Rows: an array counts as one. */
  rows: number;
  jobs: number;
  gpus: number;
}

export type Line = { heading: Group } | { job: number };

export interface Heights {
  row: number;
  heading: number;
}

/** Lines are headings and jobs; `opened`: the index of an opened job and its extra height. */
export class Geometry {
  readonly lines: number;
  private readonly headings: number[] = [];

  constructor(
    private readonly groups: readonly Group[],
    private readonly isGrouped: boolean,
    private readonly heights: Heights,
    private readonly opened: { job: number; height: number } | null = null,
  ) {
    const jobs = groups.reduce((sum, group) => sum + group.rows, 0);
    this.lines = jobs + (isGrouped ? groups.length : 0);
    let line = 0;
    for (const group of isGrouped ? groups : []) {
      this.headings.push(line);
      line += group.rows + 1;
    }
  }

  get height(): number {
    return this.top(this.lines);
  }

  at(line: number): Line {
    const headingCount = this.headingsBefore(line);
    const group = this.groups[headingCount];
    return this.isGrouped && group !== undefined && this.headings[headingCount] === line ? { heading: group } : { job: line - headingCount };
  }

  /** Return the index of the job on the line, or below the heading. */
  jobFrom(line: number): number {
    return line - this.headingsBefore(line);
  }

  /** Return the position of a line in pixels. */
  top(line: number): number {
    const headingCount = this.headingsBefore(line);
    const extra = this.opened !== null && line > this.lineOf(this.opened.job) ? this.opened.height : 0;
    return headingCount * this.heights.heading + (line - headingCount) * this.heights.row + extra;
  }

  lineOf(job: number): number {
    if (!this.isGrouped) return job;
    return job + this.headings.filter((line, at) => job >= line - at).length;
  }

  /** Return the line at a position in pixels. */
  lineAt(y: number): number {
    let [low, high] = [0, this.lines];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.top(middle + 1) <= y) low = middle + 1;
      else high = middle;
    }
    return Math.min(low, Math.max(0, this.lines - 1));
  }

  private headingsBefore(line: number): number {
    let headingCount = 0;
    while (headingCount < this.headings.length && (this.headings[headingCount] ?? 0) < line) headingCount += 1;
    return headingCount;
  }
}

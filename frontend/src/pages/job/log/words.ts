// The note below the log: position, search progress and problems.
import { plural } from "../../../ui/dom";

export interface Standing {
  /** A problem or omission as a sentence, or "". */
  problem: string;
  isGone: boolean;
  hasStreams: boolean;
  isOpen: boolean;
  isComplete: boolean;
  isEmpty: boolean;
  /** Bytes of the log above and below the view. */
  above: number;
  below: number;
}

export interface Sought {
  text: string;
  found: number;
  looked: number;
  size: number;
  isAll: boolean;
  isBusy: boolean;
  problem: string;
}

/** Format bytes. */
export function size(bytes: number): string {
  if (bytes < 1024) return plural(bytes, "byte");
  return bytes < 1 << 20 ? `${Math.round(bytes / 1024)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}

export function note(now: Standing, search: Sought | null): string {
  return [now.problem, now.isGone ? "" : ofLog(now), search === null ? "" : ofSearch(search)].filter(Boolean).join(" ");
}

function ofLog(now: Standing): string {
  if (!now.hasStreams) return "No output yet.";
  if (!now.isOpen) return "";
  if (now.isEmpty && now.above === 0 && now.below === 0) return now.isComplete ? "The job wrote nothing." : "No output yet.";
  const hidden = [now.above > 0 ? `${size(now.above)} before this` : "", now.below > 0 ? `${size(now.below)} after it` : ""].filter(Boolean);
  return [now.isComplete && now.below === 0 ? "End of the log." : "", hidden.length > 0 ? `${hidden.join(", ")}.` : ""].filter(Boolean).join(" ");
}

function ofSearch(search: Sought): string {
  const matches = `${plural(search.found, "line")} with “${search.text}”`;
  if (search.problem !== "") return `${matches} in the first ${size(search.looked)}; the search failed: ${search.problem}.`;
  if (search.isAll) return `${matches}.`;
  const sentence = `${matches} in the first ${size(search.looked)}${search.size > 0 ? ` of ${size(search.size)}` : ""}`;
  return search.isBusy ? `${sentence}, searching…` : `${sentence}.`;
}

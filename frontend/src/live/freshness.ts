// Freshness of the page: live, delayed or offline, by the time of the last `alive`.
import { h } from "../ui/dom";
import { clock } from "../ui/time";

export const LIVE_MS = 5000;
/** A connection without messages for this time is dead. */
export const DEAD_MS = 15000;

export interface Heard {
  isConnected: boolean;
  isLoggedOut: boolean;
  /** How long the server's database had not answered at the last `alive`. */
  blindSeconds: number | null;
  /** On this page's clock; null before the first. */
  aliveAt: number | null;
  cycleAgeSeconds: number | null;
  /** When rows were last polled. */
  polledAt: number | null;
}

export interface Freshness {
  level: "live" | "delayed" | "offline";
  text: string;
  title: string;
  /** Reloading the page leads to the login. */
  isLink?: boolean;
}

export function freshness(heard: Heard, now: number, hasFailed: boolean): Freshness {
  const { aliveAt, isConnected } = heard;
  const cycle = heard.cycleAgeSeconds;
  const title = cycle === null ? "" : `the scheduler's last cycle was ${cycle.toFixed(1)} s before that`;
  if (heard.isLoggedOut) return { level: "offline", text: "logged out", title: "log in again", isLink: true };
  if (!isConnected && heard.polledAt !== null && now - heard.polledAt <= DEAD_MS) {
    const age = Math.round((now - heard.polledAt) / 1000);
    return { level: "delayed", text: `polling, ${age} s old`, title: "the page cannot open a WebSocket, so it polls the server every few seconds" };
  }
  if (!isConnected) {
    if (aliveAt === null && !hasFailed) return { level: "delayed", text: "connecting…", title: "" };
    const heardAt = Math.max(aliveAt ?? 0, heard.polledAt ?? 0);
    const lastKnown = heardAt === 0 ? "as loaded" : `last known ${clock(heardAt)}`;
    return { level: "offline", text: `offline, ${lastKnown}`, title: "trying to reach the server again" };
  }
  if (aliveAt === null) return { level: "delayed", text: "connecting…", title: "" };
  const age = now - aliveAt;
  if (heard.blindSeconds !== null) {
    const seconds = Math.round(heard.blindSeconds + age / 1000);
    return { level: "delayed", text: `delayed ${seconds} s`, title: "the server's database does not respond; the page shows older data" };
  }
  if (age <= LIVE_MS) return { level: "live", text: "live", title };
  return { level: "delayed", text: `delayed ${Math.round(age / 1000)} s`, title };
}

export function showFreshness(chip: HTMLElement, now: Freshness): void {
  if (chip.textContent !== now.text) chip.replaceChildren(now.isLink === true ? h("a", { href: location.pathname + location.search }, now.text) : now.text);
  if (chip.title !== now.title) chip.title = now.title;
  for (const level of ["live", "delayed", "offline"] as const) {
    chip.classList.toggle(`is-${level}`, level === now.level);
  }
}

// The notices menu: results of the user's jobs and automatic actions, the unread count, and toasts of new ones.
import { h, plural } from "../../ui/dom";
import { request } from "../../ui/fetch_errors";
import { redraw } from "../../ui/morph";
import type { MakeView } from "../../live/regions";
import { ago, serverNow } from "../../ui/time";
import type { NoticeRow, NoticesState } from "../../live/topics";
import { toast } from "../../actions/undo";

/** Older notices show no toast, for example after the page slept. */
const NEWS_MS = 120_000;
const MAX_TOASTS = 2;
const GLYPHS = { red: "✕", amber: "▲", info: "•" } as const;
const WORDS = { red: "serious: ", amber: "attention: ", info: "" } as const;

export const bell: MakeView = (region, { hub }) => {
  const details = region.closest("details");
  const summary = details?.querySelector("summary");
  const badge = details?.querySelector<HTMLElement>("[data-unread]");
  let knownKeys: Set<string> | null = null;
  let marked = "";
  // Notices unread when the menu opened stay marked until it closes.
  let readUntil: string | null | undefined;
  const draw = (): void => {
    const { rows, hasRows } = hub.state("notices");
    const state = rows.get("state") as NoticesState | undefined;
    const notices = [...rows].filter(([key]) => key !== "state").map(([, row]) => row as NoticeRow);
    notices.sort((a, b) => Date.parse(b.at) - Date.parse(a.at));
    const unread = state?.unread ?? 0;
    if (details?.open !== true) [readUntil, marked] = [state?.seen_until ?? null, ""];
    count(summary, badge, unread);
    showNew(notices, knownKeys);
    knownKeys = new Set(notices.map((notice) => notice.key));
    const since = readUntil;
    const lines = notices.map((notice) => line(notice, since == null || Date.parse(notice.at) > Date.parse(since)));
    redraw(region, lines.length > 0 ? h("ul", {}, ...lines) : h("p", { class: "empty" }, hasRows ? "No notices yet. News about your jobs appears here." : "Loading…"));
    // Once per opening and new notice, however often the list is redrawn.
    const newest = notices[0]?.key ?? "";
    if (details?.open === true && unread > 0 && newest !== marked) {
      marked = newest;
      void markSeen();
    }
  };
  details?.addEventListener("toggle", draw);
  return { draw };
};

function count(summary: Element | null | undefined, badge: HTMLElement | null | undefined, unread: number): void {
  const shown = unread > 9 ? "9+" : String(unread);
  if (badge) {
    badge.textContent = unread > 0 ? shown : "";
    badge.hidden = unread === 0;
  }
  // With the visible text: people who speak to their browser say what they see.
  summary?.setAttribute("aria-label", unread > 0 ? `Notices, ${shown} unread` : "Notices");
}

function line(notice: NoticeRow, isUnread: boolean): HTMLElement {
  const text = notice.href === null ? h("span", {}, notice.sentence) : h("a", { href: notice.href }, notice.sentence);
  const glyph = h("i", { class: `is-${notice.severity}`, "aria-hidden": "true" }, GLYPHS[notice.severity]);
  const prefix = h("span", { class: "visually-hidden" }, `${isUnread ? "unread, " : ""}${WORDS[notice.severity]}`);
  return h("li", { class: isUnread ? "is-unread" : null, "data-key": notice.key }, glyph, h("div", {}, prefix, text, h("span", { class: "muted small" }, ago(notice.at))));
}

/** Show toasts for new notices about the user's own jobs. */
function showNew(notices: readonly NoticeRow[], knownKeys: ReadonlySet<string> | null): void {
  if (knownKeys === null) return;
  const news = notices.filter((n) => n.is_mine && !knownKeys.has(n.key) && serverNow() - Date.parse(n.at) < NEWS_MS);
  if (news.length > MAX_TOASTS) return void toast(`${plural(news.length, "notice")} about your jobs. Open Notices to read them.`);
  for (const notice of news) {
    const { href } = notice;
    toast(`${notice.sentence}.`, href === null || href === location.pathname ? undefined : { word: "Show", run: () => location.assign(href) });
  }
}

async function markSeen(): Promise<void> {
  const token = document.querySelector<HTMLInputElement>("[name=csrfmiddlewaretoken]")?.value ?? "";
  try {
    await request("/notices/seen/", { method: "POST", headers: { "X-CSRFToken": token } });
  } catch {
    // They stay unread, and the next opening retries.
  }
}

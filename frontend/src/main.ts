// The page's entry: starts each part once.
import htmx from "htmx.org";
import { startJobActions } from "./actions";
import { startAsking } from "./asking";
import { bell } from "./bell";
import { startCommands } from "./commands";
import { applyFilter, startFilter } from "./filter";
import { startCopy } from "./copy";
import { overviewStrip } from "./fleet/strip";
import { fleet } from "./fleet/view";
import { freshness, showFreshness } from "./freshness";
import { Hub } from "./hub";
import { showHelp, startKeyboard } from "./keyboard";
import { jobLog } from "./log/view";
import { keepDraft, startMarks, tellRestored } from "./marks";
import { Polling } from "./polling";
import { Regions } from "./regions";
import { liveSocket } from "./socket";
import { startShown } from "./shown";
import { startTheme } from "./theme";
import { tick } from "./time";
import { startWall } from "./wall";
import { startUndo } from "./undo";
import { again } from "./views/again";
import { jobEvents, jobHead } from "./views/job";
import { jobGpus } from "./views/jobgpus";
import { jobTimeline } from "./views/jobtimeline";
import { queue } from "./queue/view";
import { jobs } from "./views/jobs";
import { nodeReadings } from "./views/node";
import { nodes } from "./views/nodes";
import * as overview from "./views/overview";
import { overviewTenants } from "./views/standing";
import { startUsage } from "./views/usage";

htmx.config.allowEval = false;
htmx.config.includeIndicatorStyles = false;
// Back loads the page: a body put back from a cache has nothing of what was bound to the one before it.
htmx.config.historyCacheSize = 0;
htmx.config.refreshOnHistoryMiss = true;

const hub = new Hub(liveSocket);
const polling = new Polling(hub);
const regions = new Regions(
  { hub },
  {
    again,
    bell,
    "overview-strip": overviewStrip,
    "overview-counts": overview.overviewCounts,
    "overview-largest": overview.overviewLargest,
    "overview-attention": overview.overviewAttention,
    "overview-waiting": overview.overviewWaiting,
    "overview-tenants": overviewTenants,
    fleet,
    nodes,
    "node-readings": nodeReadings,
    queue,
    jobs,
    "job-head": jobHead,
    "job-timeline": jobTimeline,
    "job-events": jobEvents,
    "job-gpus": jobGpus,
    "job-log": jobLog,
  },
  applyFilter,
);

const chips = document.querySelectorAll<HTMLElement>("[data-freshness]");

function showHeard(): void {
  const now = freshness(hub.heard, Date.now(), hub.hasFailed);
  for (const chip of chips) showFreshness(chip, now);
  document.documentElement.classList.toggle("is-stale", now.level === "offline");
}

const restyleUsage = startUsage();
startTheme(() => {
  regions.restyle();
  restyleUsage();
});
startKeyboard();
startCommands(showHelp);
startWall();
startFilter();
startCopy();
startMarks();
startUndo();
startShown();
startAsking();
regions.scan();
tick(document);
// A page without anything live (login, tokens) holds no connection.
if (chips.length > 0 || document.querySelector("[data-live]") !== null) {
  startJobActions(hub);
  hub.onHeard = showHeard;
  hub.setHidden(document.hidden);
  hub.start();
  showHeard();
  document.addEventListener("visibilitychange", () => hub.setHidden(document.hidden));
  addEventListener("online", () => hub.hurry());
  // A page that the browser kept and shows again is not what it was: it starts anew.
  addEventListener("pageshow", (event) => event.persisted && location.reload());
}
document.addEventListener("htmx:afterSettle", () => {
  regions.scan();
  tick(document);
});
addEventListener("pageshow", () => tellRestored());
addEventListener("pagehide", keepDraft);
document.addEventListener("redrawn", (event) => event.target instanceof Element && htmx.process(event.target));
setInterval(() => {
  hub.watch();
  void polling.tick();
  showHeard();
  if (!document.hidden) tick(document);
}, 1000);

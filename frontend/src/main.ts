// The page's entry: starts each part once.
import htmx from "htmx.org";
import { startJobActions } from "./actions/buttons";
import { startAsking } from "./actions/forms";
import { bell } from "./pages/notices/bell";
import { startCommands } from "./pages/search/palette";
import { applyFilter, startFilter } from "./ui/filter";
import { startCopy } from "./ui/copy";
import { overviewStrip } from "./pages/fleet/strip";
import { fleet } from "./pages/fleet/view";
import { freshness, showFreshness } from "./live/freshness";
import { Hub } from "./live/hub";
import { showHelp, startKeyboard } from "./ui/keyboard";
import { jobLog } from "./pages/job/log/view";
import { keepDraft, keepDraftOverLogin, startMarks, refreshRestored as refreshRestored } from "./pages/submit/draft";
import { Polling, type Snapshot } from "./live/polling";
import { Regions } from "./live/regions";
import { liveSocket } from "./live/socket";
import { deferHiddenRequests } from "./live/visibility";
import { startTheme } from "./ui/theme";
import { startPreviews } from "./ui/previews";
import { tick } from "./ui/time";
import { startWall } from "./pages/overview/wall";
import { startUndo } from "./actions/undo";
import { serverRegion } from "./live/server_region";
import { jobEvents, jobHead } from "./pages/job/job";
import { jobGpus } from "./pages/job/gpus";
import { jobTimeline } from "./pages/job/timeline";
import * as endpoints from "./pages/endpoints/lazy";
import { queue } from "./pages/queue/view";
import { jobs } from "./pages/jobs/jobs";
import { nodeReadings } from "./pages/node/node";
import { nodes } from "./pages/nodes/nodes";
import * as overview from "./pages/overview/overview";
import { overviewTenants } from "./pages/overview/tenants";
import { startUsage } from "./pages/usage/usage";

htmx.config.allowEval = false;
htmx.config.includeIndicatorStyles = false;
// Back reloads the page: a body from the cache has no listeners.
htmx.config.historyCacheSize = 0;
htmx.config.refreshOnHistoryMiss = true;

const hub = new Hub(liveSocket);
const polling = new Polling(hub);
const regions = new Regions(
  { hub },
  {
    again: serverRegion,
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
    endpoints: endpoints.list,
    "endpoint-head": endpoints.head,
    "endpoint-batches": endpoints.batches,
    "endpoint-replicas": endpoints.replicas,
    "endpoint-costs": endpoints.costs,
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
keepDraftOverLogin();
startPreviews();
startUndo();
deferHiddenRequests();
startAsking();
regions.scan();
for (const carried of document.querySelectorAll("script[data-snapshot]")) hub.load(JSON.parse(carried.textContent) as Snapshot);
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
  // Reload a page restored from the browser's cache.
  addEventListener("pageshow", (event) => event.persisted && location.reload());
}
document.addEventListener("htmx:afterSettle", () => {
  regions.scan();
  applyFilter();
  tick(document);
});
addEventListener("pageshow", () => refreshRestored());
addEventListener("pagehide", keepDraft);
document.addEventListener("redrawn", (event) => event.target instanceof Element && htmx.process(event.target));
setInterval(() => {
  hub.watch();
  void polling.tick();
  showHeard();
  if (!document.hidden) tick(document);
}, 1000);

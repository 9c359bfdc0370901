// Periodic work runs only while the page is visible, and at once when it becomes visible.

/** Run once after `ms`, or when a hidden tab becomes visible. Returns a cancel function. */
export function whenVisible(run: () => void, ms: number): () => void {
  const onVisible = (): void => {
    if (document.hidden) return;
    document.removeEventListener("visibilitychange", onVisible);
    run();
  };
  const timer = setTimeout(() => {
    if (!document.hidden) return run();
    document.addEventListener("visibilitychange", onVisible);
  }, ms);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onVisible);
  };
}

/** Defer requests of polling elements (`hx-trigger` with `every`); their trigger includes `shown`. */
export function deferHiddenRequests(): void {
  const deferred = new Set<Element>();
  document.addEventListener("htmx:beforeRequest", (event) => {
    const { elt, requestConfig } = (event as CustomEvent<{ elt: Element; requestConfig: { verb: string } }>).detail;
    if (!document.hidden || requestConfig.verb !== "get") return;
    event.preventDefault();
    deferred.add(elt);
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    const all = [...deferred];
    deferred.clear();
    for (const element of all) if (element.isConnected) element.dispatchEvent(new Event("shown"));
  });
}

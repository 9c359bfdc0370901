// What a page does again and again it does only while somebody looks, and at once when they look again: the one way for all.

/** Runs once, so much later; where the tab is hidden then, as soon as it is shown. The answer ends the wait. */
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

/** Parts of the page that ask by themselves (`hx-trigger` with `every`) wait, too: their trigger has `shown`. */
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

// Wall mode: a clock that all can read, a screen that stays awake, and the way out by Esc.
import { clock, serverNow } from "../../ui/time";

export function startWall(go: (href: string) => void = (href) => location.assign(href)): void {
  if (!document.body.classList.contains("wall")) return;
  const face = document.querySelector<HTMLElement>("[data-wall-clock]");
  const show = (): void => {
    if (face !== null) face.textContent = clock(serverNow());
  };
  show();
  setInterval(show, 1000);
  document.addEventListener("keydown", (event) => event.key === "Escape" && !event.defaultPrevented && go("/overview/"));
  const stayAwake = (): void => {
    // Browsers without it, or that refuse it, sleep as they are set to.
    if (!document.hidden) navigator.wakeLock?.request("screen").catch(() => undefined);
  };
  stayAwake();
  document.addEventListener("visibilitychange", stayAwake);
}

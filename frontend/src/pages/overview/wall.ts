// Wall mode: a clock, a screen that stays awake, and Esc to leave.
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
    // Not all browsers support a wake lock.
    if (!document.hidden) navigator.wakeLock?.request("screen").catch(() => undefined);
  };
  stayAwake();
  document.addEventListener("visibilitychange", stayAwake);
}

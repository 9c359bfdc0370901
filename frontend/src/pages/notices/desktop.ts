// Desktop notifications while the page is hidden, if enabled in this browser.
import type { NoticeRow } from "../../live/topics";

const KEY = "gpusched.notify";

/** The button that enables or disables them; `start` is called when enabled. */
export function offer(within: Element, start: () => void): void {
  const button = within.querySelector<HTMLButtonElement>("[data-notify]");
  if (button === null || typeof Notification === "undefined") return;
  const show = (): void => {
    button.hidden = Notification.permission === "denied";
    button.textContent = isWanted() ? "Desktop notifications are on" : "Notify me on this desktop";
    button.setAttribute("aria-pressed", String(isWanted()));
    if (isWanted()) start();
  };
  button.addEventListener("click", () => {
    if (isWanted()) {
      remember(false);
      return show();
    }
    void Notification.requestPermission().then((answer) => {
      remember(answer === "granted");
      show();
    });
  });
  show();
}

export function notify(notice: NoticeRow): void {
  if (!isWanted()) return;
  // The tag merges notifications of several open pages.
  const notification = new Notification("gpusched", { body: notice.sentence, tag: notice.key });
  notification.onclick = () => {
    window.focus();
    if (notice.href !== null) location.assign(notice.href);
  };
}

function isWanted(): boolean {
  try {
    return Notification.permission === "granted" && localStorage.getItem(KEY) === "yes";
  } catch {
    return false;
  }
}

function remember(isOn: boolean): void {
  try {
    localStorage.setItem(KEY, isOn ? "yes" : "no");
  } catch {
    // Without storage, ask each time.
  }
}

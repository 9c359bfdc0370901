// In the admin, what an edit of a quota would do stands beside it while it is typed, as on the quota's page.
(() => {
  const PAUSE_MS = 400;

  const start = () => {
    const group = document.getElementById("quota-group");
    const form = group?.closest("form");
    if (!form || !/\/change\/$/.test(location.pathname)) return;
    const box = document.createElement("div");
    box.id = "quota-effect";
    box.setAttribute("role", "status");
    group.append(box);
    let timer = 0;
    let round = 0;

    const show = (title, lines, isBad) => {
      const head = document.createElement("b");
      head.textContent = title;
      const list = document.createElement("ul");
      for (const line of lines) list.append(Object.assign(document.createElement("li"), { textContent: line }));
      box.classList.toggle("is-bad", isBad);
      box.replaceChildren(head, list);
    };

    const ask = async () => {
      const mine = ++round;
      try {
        const answer = await fetch(location.pathname.replace(/change\/$/, "quota-effect/"), { method: "POST", body: new FormData(form), redirect: "error" });
        if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
        const told = await answer.json();
        if (mine !== round) return;
        if (told.errors.length > 0) show("This edit of the quota cannot be made", told.errors, true);
        else if (told.differs) show("What this edit of the quota would do", told.sentences, told.contradicts);
        else box.replaceChildren();
      } catch {
        if (mine === round) show("What this edit would do could not be asked; saving it says so first", [], false);
      }
    };

    group.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(ask, PAUSE_MS);
    });
  };

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();

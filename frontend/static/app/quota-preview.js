// In the admin, the effect of a quota edit is shown beside it during typing, as on the quota's page.
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
        if (told.errors.length > 0) show("This quota cannot be saved", told.errors, true);
        else if (told.differs) show("Effect of this edit", told.sentences, told.contradicts);
        else box.replaceChildren();
      } catch {
        if (mine === round) show("The effect of this edit could not be loaded. You can confirm it when you save", [], false);
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

// The admin has its own switch between light and dark, a class; the page's colours go by an attribute.
(() => {
  const root = document.documentElement;
  const follow = () => {
    root.dataset.theme = root.classList.contains("dark") ? "dark" : "light";
  };
  follow();
  new MutationObserver(follow).observe(root, { attributes: true, attributeFilter: ["class"] });
})();

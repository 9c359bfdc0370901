// Before the first paint: the theme that this browser was told to use.
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is off: the system's theme */ }

// Builds the page's one script, live.js, into the folder that Django serves; the tests run in a small DOM.
import { defineConfig } from "vitest/config";

export default defineConfig({
  publicDir: false,
  build: {
    outDir: "static/live",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    rollupOptions: {
      input: "src/main.ts",
      // HTMX has an eval behind a switch that the page turns off.
      onwarn: (warning, show) => warning.code === "EVAL" || show(warning),
      output: { format: "es", entryFileNames: "live.js", inlineDynamicImports: true },
    },
  },
  test: { environment: "happy-dom", include: ["tests/**/*.test.ts"] },
});

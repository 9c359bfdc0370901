// Builds the page's script, live.js, and what it loads when it is needed, into the folder that Django serves; the tests
// run in a small DOM.
import { defineConfig } from "vitest/config";

export default defineConfig({
  // Relative to the script itself: the page's folder of static files may be served from anywhere.
  base: "./",
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
      output: { format: "es", entryFileNames: "live.js", chunkFileNames: "[name].js", assetFileNames: "[name][extname]" },
    },
  },
  // The limit ends a test that hangs; it is generous because machines that run other work slow a test down.
  test: { environment: "happy-dom", include: ["tests/**/*.test.ts"], testTimeout: 60_000, hookTimeout: 60_000 },
});

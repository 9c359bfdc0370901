// The page's entry: starts each part once.
import htmx from "htmx.org";
import { startTheme } from "./theme";

htmx.config.allowEval = false;
htmx.config.includeIndicatorStyles = false;

startTheme(() => undefined);

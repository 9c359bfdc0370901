"""Generate reference documentation from the code: command line, REST, SDK, settings and metrics."""

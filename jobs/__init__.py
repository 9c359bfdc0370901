"""Jobs, arrays, attempts, events and logs."""

"""The contract between machines: states, reason codes, job requests and agent messages. Pure: no I/O, no server."""

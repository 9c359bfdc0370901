"""The contract between programs: states, reason codes, job requests and agent messages. Pure: no I/O, no server."""

"""The daemon of a GPU node: reads NVML, runs what the control plane wants, and never loses track of it."""

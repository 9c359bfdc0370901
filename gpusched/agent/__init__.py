"""The daemon of a GPU node: it reads NVML, runs the ranks that the control plane orders, and never loses track of
them."""

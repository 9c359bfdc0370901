"""Nodes, devices, allocations and readings, and the communication with agents."""

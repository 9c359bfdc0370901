"""Nodes, their devices, the allocations of devices, and stored readings."""

from nodes.models.inventory import Allocation, Assignment, Device, Incident, JoinToken, ListenerLease, Node, Reading
from nodes.models.telemetry import GpuClock, HeldDay, HeldIdle, IdleExemption, MissingUser, Rollup, Sample

__all__ = [
    "Allocation",
    "Assignment",
    "Device",
    "GpuClock",
    "HeldDay",
    "HeldIdle",
    "IdleExemption",
    "Incident",
    "JoinToken",
    "ListenerLease",
    "MissingUser",
    "Node",
    "Reading",
    "Rollup",
    "Sample",
]

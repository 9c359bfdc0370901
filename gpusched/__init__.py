"""gpusched shares a cluster of GPUs between teams, fairly, quickly and without ever losing a job."""

__version__ = "0.1.0"

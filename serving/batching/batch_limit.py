"""The most requests that fit into a batch of an endpoint, learned from batches that ran out of memory. Pure."""

from dataclasses import dataclass

# After this time, a batch of the size that ran out of memory may be tried again: its neighbours on the GPU may be gone.
RETRY_SECONDS = 600.0


@dataclass
class BatchLimit:
    """`fits`: the most requests that fit, as far as known; None: no batch ran out of memory. `failed`: the size of the
    smallest batch that did, and `failed_at` when."""

    fits: int | None = None
    failed: int = 0
    failed_at: float = 0.0

    def below(self, maximum: int) -> int:
        """Return the most requests of the next batch, at most `maximum`."""
        return maximum if self.fits is None else min(self.fits, maximum)

    def is_below(self, maximum: int) -> bool:
        return self.below(maximum) < maximum

    def record_out_of_memory(self, size: int, now: float) -> None:
        """Halve the batches. A single request that runs out of memory is at fault itself, and changes nothing."""
        if size < 2:
            return
        is_recent = self.failed > 0 and now - self.failed_at < RETRY_SECONDS
        self.failed = min(self.failed, size) if is_recent else size
        self.failed_at, self.fits = now, size // 2

    def record_success(self, size: int, maximum: int, now: float) -> None:
        """Allow one request more after a full batch, up to the size that ran out of memory lately."""
        if self.fits is None or size < self.fits:
            return
        if size + 1 >= self.failed and now - self.failed_at < RETRY_SECONDS:
            return
        self.fits = size + 1 if size + 1 < maximum else None

"""Failures of the storage of logs and large tasks: a full disk, or an object store that does not answer."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gpusched.lib.api.problems import Problem

logger = logging.getLogger(__name__)


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise a 503 in place of what a storage raises, as each has errors of its own. A missing file stays one."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        logger.exception("the storage of logs and large tasks failed")
        detail = "the storage of logs and large tasks does not answer, or is full"
        step = "try again; if it lasts, the server's log has the reason"
        raise Problem(503, "storage_unavailable", detail, next_step=step, retry_after=5) from error

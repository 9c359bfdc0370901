"""The server's answers about use and money, as structs; fields of a newer server are ignored."""

from datetime import datetime

import msgspec


class Used(msgspec.Struct, kw_only=True):
    """Use, and its cost.

    `gpu_seconds`: wall time x GPUs (a shared device counts by its part), up to now for running jobs, whose part is
    `running_gpu_seconds`. `cost` excludes `refunded_cost`, the cost of the `refunded_gpu_seconds` of attempts that
    ended by faults of nodes. `unpriced_gpu_seconds`: no rate was in force."""

    gpu_seconds: float
    gpu_hours: float
    running_gpu_seconds: float
    refunded_gpu_seconds: float
    unpriced_gpu_seconds: float
    cost: float
    refunded_cost: float
    jobs: int


class UsedPart(Used, kw_only=True):
    """A row of use: `key` is its user, job number, GPU model or day (UTC). Rows of jobs have `name` and `user`, too."""

    key: str
    name: str = ""
    user: str = ""


class Usage(msgspec.Struct, kw_only=True):
    """The use of a tenant from `start_at` to `end_at`; `total` covers all pages."""

    tenant: str
    start_at: datetime
    end_at: datetime
    by: str
    currency: str
    total: Used
    items: list[UsedPart]
    next_cursor: str | None = None


class RateData(msgspec.Struct, kw_only=True):
    """The price of a GPU-hour of a model from `starts_at` until before `ends_at` (null: for ever).

    `gpu_model`: words of the driver's name, like A100; * covers every model without its own rate."""

    id: int
    gpu_model: str
    price_per_gpu_hour: float
    currency: str
    starts_at: datetime
    ends_at: datetime | None = None
    created_by: str = ""


class Crossing(msgspec.Struct, kw_only=True):
    """A budget was used up: `bound` is soft or hard."""

    bound: str
    gpu_hours: float
    at: datetime


class BudgetData(msgspec.Struct, kw_only=True):
    """The GPU-hours of a tenant in a calendar month (UTC), or in the last `days`; a bound that is not set is null.

    `state`: within, soft_exceeded, or hard_exceeded: no more GPU jobs start. `version` 0: never had a budget."""

    tenant: str
    soft_gpu_hours: float | None = None
    hard_gpu_hours: float | None = None
    days: int | None = None
    version: int = 0
    used_gpu_hours: float | None = None
    since: datetime | None = None
    renews_at: datetime | None = None
    state: str = "within"
    sentence: str = ""
    status: str = ""
    crossings: list[Crossing] = []

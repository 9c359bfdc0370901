"""Each tenant can read what its weight counts as, and why."""

from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.cycle import tenants
from scheduling.engine.model import Policy
from scheduling.status import cluster
from tenants.models import UsageEntry
from tests.factories import make_tenant

pytestmark = pytest.mark.django_db(transaction=True)


def used(tenant, hours):
    now = timezone.now()
    UsageEntry.objects.create(
        tenant=tenant, job_id=tenant.pk, attempt=1, rank=0, device_id=1, node="n", gpu_model="A100", gpus=1.0, cause="exited",
        started_at=now - timedelta(hours=hours + 1), ended_at=now - timedelta(hours=1),
    )  # fmt: skip


def test_effective_weight_is_shown_with_its_reason(monkeypatch):
    monkeypatch.setattr(tenants._histories, "seconds", 0.0)
    used(make_tenant("idle", weight=2), 10)
    used(make_tenant("busy", weight=2), 30)
    assert {share["effective_weight"] for share in cluster.shares()} == {2.0}
    monkeypatch.setattr(cluster, "policy", lambda: Policy(dynamic_share_bound=0.2))
    shares = {share["tenant"]: share for share in cluster.shares()}
    assert (shares["idle"]["effective_weight"], shares["busy"]["effective_weight"]) == (1.8, 2.2)
    assert shares["busy"]["weight"] == 2.0
    assert shares["busy"]["weight_reason"] == (
        "It used 75% of the GPU time of late with 50% of the weights, so its weight of 2 counts as 2.2 "
        "(+10 %; at most 20% more or less)."
    )

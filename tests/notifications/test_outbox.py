"""The outbox of notifications: a notice exists exactly if its fact does."""

import pytest
from django.db import transaction

from gpusched.lib.hooks import hook
from notifications.models import Notice

pytestmark = pytest.mark.django_db


def test_hook_writes_a_notice_with_its_recipients_and_data():
    assert hook("notify")("budget", tenant_id=1, user_id=2, subject_id=3, data={"text": "half is used"})
    notice = Notice.objects.get()
    assert (notice.kind, notice.tenant_id, notice.user_id, notice.subject_id) == ("budget", 1, 2, 3)
    assert (notice.data, notice.key, notice.expanded_at) == ({"text": "half is used"}, None, None)


def test_hook_writes_a_fact_once_when_its_key_repeats():
    assert hook("notify")("reservation_idle", tenant_id=1, key="reservation:7:idle")
    assert not hook("notify")("reservation_idle", tenant_id=1, key="reservation:7:idle")
    assert Notice.objects.count() == 1


def test_hook_refuses_an_unknown_kind():
    with pytest.raises(ValueError, match="job_exploded"):
        hook("notify")("job_exploded")


def test_notice_is_rolled_back_with_its_fact():
    with transaction.atomic():
        hook("notify")("incident", data={"text": "GPU 3 of n1 is lost"})
        transaction.set_rollback(True)
    assert not Notice.objects.exists()

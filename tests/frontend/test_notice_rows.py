"""Order and severity of notices."""

import pytest

from frontend.live import feed
from frontend.pages.notices import rows as noticerows
from gpusched.lib.db.sql import execute
from tests.factories import make_node, make_user, submit

pytestmark = pytest.mark.django_db


def notice_rows(user, visible):
    return [row for key, row in feed.rows("notices", visible, user.pk).items() if key != "state"]


def end(job_id, reason):
    execute(
        "INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, data)"
        " VALUES (%s, now(), 'ended', 1, '', jsonb_build_object('reason', %s::text))",
        [job_id, reason],
    )


def test_own_notices_take_precedence_over_system_activity(ours):
    admin = make_user("root", admin=True)
    end(submit(admin, ours), "cancelled")
    make_node(gpus=1)
    execute(
        "INSERT INTO nodes_incident (node_id, device_id, kind, cause, since, until)"
        " SELECT node_id, id, 'lost', '', now() + interval '1 s', now() FROM nodes_device, generate_series(1, %s)",
        [noticerows.MAX_NOTICES],
    )
    rows = notice_rows(admin, None)
    assert (len(rows), rows[0]["is_mine"], sum(row["is_mine"] for row in rows)) == (noticerows.MAX_NOTICES, True, 1)


@pytest.mark.parametrize(("reason", "severity"), [("cancelled", "info"), ("requeued", "info"), ("exited", "red")])
def test_requested_end_is_no_alarm(ours, anna, reason, severity):
    end(submit(anna, ours), reason)
    assert [row["severity"] for row in notice_rows(anna, (ours.pk,))] == [severity]


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("\u05e9\u05dc\u05d5\u05dd", "\u2068\u05e9\u05dc\u05d5\u05dd\u2069"),
        ("x\u2069\u202ey", "xy"),
        ("train", "train"),
    ],
)
def test_name_does_not_turn_the_sentence_about(ours, anna, name, named):
    job_id = submit(anna, ours, name=name)
    end(job_id, "exited")
    assert [row["sentence"] for row in notice_rows(anna, (ours.pk,))] == [f"job {job_id} {named}: exited with code ?"]

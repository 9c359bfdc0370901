from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models
from django.db.models import Q

_LISTED = Q(array=None)
_FINAL = Q(state__in=["cancelled", "completed", "failed", "preempted"])


class Migration(migrations.Migration):
    # Nobody waits while they are built. What was cut short leaves an invalid index behind, which is made anew.
    atomic = False

    dependencies = [("jobs", "0019_jobs_by_their_end")]

    operations = [
        step
        for fields, name, condition, replaced in (
            (["id"], "job_by_id", _LISTED, "job_listed"),
            (["tenant", "id"], "job_by_tenant", _LISTED, "job_listed_by_tenant"),
            (["user", "id"], "job_by_user", _LISTED, "job_listed_by_user"),
            (["state", "id"], "job_final_by_state", _LISTED & _FINAL, "job_listed_by_state"),
        )
        for step in (
            migrations.RunSQL(f"DROP INDEX CONCURRENTLY IF EXISTS {name}", migrations.RunSQL.noop),
            AddIndexConcurrently("job", models.Index(fields=fields, name=name, condition=condition)),
            RemoveIndexConcurrently("job", replaced),
        )
    ]

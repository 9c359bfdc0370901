from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    # Nobody waits while it is built. What was cut short leaves an invalid index behind, which is made anew.
    atomic = False

    dependencies = [("jobs", "0018_tallies")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_by_end", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                fields=["ended_at"], name="job_by_end", condition=models.Q(array=None, ended_at__isnull=False)
            ),
        ),
    ]

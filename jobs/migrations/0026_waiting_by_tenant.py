from django.conf import settings
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    # Nobody waits while it is built. What was cut short leaves an invalid index behind, which is made anew.
    atomic = False

    dependencies = [
        ("jobs", "0025_affinity"),
        ("tenants", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS job_waiting_by_tenant", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                fields=["tenant", "user"],
                name="job_waiting_by_tenant",
                condition=models.Q(state__in=["held", "pending"]),
            ),
        ),
    ]

"""Periods of reasons, kept by a trigger. Its own index is its primary key; a foreign key would be checked row by row."""

import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

_KEEP = """
    INSERT INTO jobs_jobreason (job_id, code, since_at, until_at)
    SELECT o.id, o.reason, o.reason_since, now()
      FROM old_jobs o JOIN new_jobs n ON n.id = o.id
     WHERE o.reason <> n.reason AND o.reason <> '' AND o.reason_since < now()
       AND (o.reason <> 'scheduler_behind' OR o.reason_since < now() - interval '1 second');
    RETURN NULL;
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0003_room_for_updates")]

    operations = [
        migrations.CreateModel(
            name="JobReason",
            fields=[
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="jobs.job",
                    ),
                ),
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "until_at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("code", models.CharField(max_length=30)),
                ("since_at", models.DateTimeField()),
                ("until_at", models.DateTimeField()),
            ],
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="job",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_reasons",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func=_KEEP,
                    hash="5983d872605029c04162d54798e5199bc4fc7da6",
                    level="STATEMENT",
                    operation="UPDATE",
                    pgid="pgtrigger_keep_reasons_a6e25",
                    referencing="REFERENCING OLD TABLE AS old_jobs  NEW TABLE AS new_jobs ",
                    table="jobs_job",
                    when="AFTER",
                ),
            ),
        ),
    ]

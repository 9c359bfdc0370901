from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0023_retention_progress")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="traceparent",
            field=models.CharField(blank=True, db_default="", default="", max_length=55),
        ),
    ]

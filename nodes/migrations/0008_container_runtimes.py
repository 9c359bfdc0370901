from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('nodes', '0007_mig_and_readings'),
    ]

    operations = [
        migrations.AddField(
            model_name='node',
            name='runtimes',
            field=models.JSONField(blank=True, db_default=models.Value({}, output_field=models.JSONField()), default=dict, help_text='Container runtimes that answer there, and their versions'),
        ),
    ]

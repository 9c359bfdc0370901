from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('nodes', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='reading',
            name='idle_since',
            field=models.DateTimeField(help_text='Each reading since then said 0 %; empty: the latest not', null=True),
        ),
    ]

from django.db import migrations, models

# Of nodes that were removed names and keys may stand twice; without `removed_at` they may not.
_APART = """
    UPDATE nodes_node SET name = left(name, 220) || ' (removed, ' || id || ')', node_key = 'removed-' || id
     WHERE removed_at IS NOT NULL
"""


class Migration(migrations.Migration):
    offline = "builds indexes of nodes"
    dependencies = [("nodes", "0020_taints_and_admin_labels")]

    operations = [
        migrations.AddField("node", "removed_at", models.DateTimeField(editable=False, null=True)),
        migrations.AlterField("node", "name", models.CharField(max_length=253)),
        migrations.AlterField("node", "node_key", models.CharField(editable=False, max_length=64)),
        migrations.AddConstraint(
            "node",
            models.UniqueConstraint(fields=["name"], name="node_name_once", condition=models.Q(removed_at=None)),
        ),
        migrations.AddConstraint(
            "node",
            models.UniqueConstraint(fields=["node_key"], name="node_key_once", condition=models.Q(removed_at=None)),
        ),
        migrations.RunSQL(migrations.RunSQL.noop, _APART),
    ]

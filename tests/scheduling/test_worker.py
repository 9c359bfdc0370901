"""The command `worker`: which settings of django-q2 its cluster has."""

import json
import os
import subprocess
import sys

import pytest

from tests.system.stack import ROOT

# django-q2 is loaded without the name of a cluster, or with another one, as in a fork of a process that has loaded it.
CHOOSE = """
import importlib, json, os, sys, django
django.setup()
from django_q import conf
from gpusched.management.commands import worker
worker._choose_cluster(sys.argv[1])
chosen = vars(conf.Conf)
os.environ["Q_CLUSTER_NAME"] = sys.argv[1]
named = vars(importlib.reload(conf).Conf)
names = [name for name in named if name.isupper() and name[0] != "_" and name != "SIGNAL_NAMES"]
print(json.dumps([[f"{name}={some.get(name)}" for name in names] for some in (chosen, named)]))
"""


@pytest.mark.parametrize(("cluster", "loaded_as"), [("cycles", ""), ("housekeeping", ""), ("housekeeping", "cycles")])
def test_worker_has_the_settings_of_its_cluster_when_django_q_was_loaded_as_another(
    tmp_path, cluster: str, loaded_as: str
) -> None:
    variables = {"DJANGO_SETTINGS_MODULE": "gpusched.settings", "GPUSCHED_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CHOOSE, cluster], cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={**os.environ, **variables, "Q_CLUSTER_NAME": loaded_as},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    chosen, named = json.loads(done.stdout)
    assert chosen == named
    assert len(named) > 20 and f"CLUSTER_NAME={cluster}" in named
    # A worker that ends by plan ends its cluster: it would every 500 tasks.
    assert int(dict(entry.split("=", 1) for entry in chosen)["RECYCLE"]) > 10**9

"""The chart and the compose file: they render, Kubernetes' schema accepts them, and they use real commands and settings.

After an intended change of the chart, write the golden file again: python -m tests.lib.test_deployment."""

import json
import re
import stat
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from django.core.management import get_commands
from django.test import Client

from gpusched.env import Env, read
from tests.docs.blocks import blocks

ROOT = Path(__file__).parents[2]
CHART, COMPOSE = ROOT / "deploy" / "chart", ROOT / "deploy" / "compose.yaml"
GOLDEN = Path(__file__).parent / "golden" / "chart.yaml"
VERSION = "1.31"
SETTINGS = {f"GPUSCHED_{field.name.upper()}" for field in fields(Env)}


def render(release: str = "gpusched", **values: Any) -> str:
    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name=release, namespace="default")
    return "".join(text for _, text in sorted(files.items()) if text.strip())


def objects(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def containers(text: str) -> list[dict[str, Any]]:
    specs = [item["spec"]["template"]["spec"] for item in objects(text) if item["kind"] == "Deployment"]
    return [container for spec in specs for container in (*spec["containers"], *spec.get("initContainers", ()))]


def test_chart_renders_as_the_golden_file() -> None:
    assert render() == GOLDEN.read_text()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "webReplicas": 3,
            "ingressClassName": "nginx",
            "storage": {"className": "fast", "accessMode": "ReadWriteMany"},
            "settings": {"tick_seconds": 2},
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "pool", "operator": "Exists", "effect": "NoSchedule"}],
        },
    ],
)
def test_kubernetes_accepts_the_chart(values: dict[str, Any]) -> None:
    # Here, as its import compiles a grammar: two seconds for every process that collects the tests.
    import kubernetes_validate

    for item in objects(render(**values)):
        kubernetes_validate.validate(item, VERSION, strict=True)


def test_values_reach_the_manifests() -> None:
    text = render(image="registry.example/gpusched:9", host="gpu.internal", webReplicas=3, settings={"mcp": False})
    assert {container["image"] for container in containers(text)} == {"registry.example/gpusched:9"}
    assert {"name": "GPUSCHED_MCP", "value": "false"} in containers(text)[0]["env"]
    replicas = {
        item["metadata"]["name"]: item["spec"]["replicas"] for item in objects(text) if item["kind"] == "Deployment"
    }
    assert replicas == {"gpusched-web": 3, "gpusched-cycles": 1, "gpusched-housekeeping": 1}
    assert "host: gpu.internal" in text


def pod_specs(**values: Any) -> list[dict[str, Any]]:
    return [item["spec"]["template"]["spec"] for item in objects(render(**values)) if item["kind"] == "Deployment"]


def test_pods_with_a_volume_of_one_node_run_on_one_node() -> None:
    """All three deployments mount it: on another node a pod would wait for ever."""
    for spec in pod_specs():
        [term] = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        labels = term["labelSelector"]["matchLabels"]
        for item in objects(render()):
            if item["kind"] == "Deployment":
                assert labels.items() <= item["spec"]["template"]["metadata"]["labels"].items()
    assert not any("affinity" in spec for spec in pod_specs(storage={"accessMode": "ReadWriteMany"}))


def test_pods_run_on_the_chosen_nodes() -> None:
    taint = [{"key": "pool", "operator": "Exists"}]
    for spec in pod_specs(nodeSelector={"pool": "system"}, tolerations=taint):
        assert (spec["nodeSelector"], spec["tolerations"]) == ({"pool": "system"}, taint)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"nodeselector": {}}, "nodeselector"),
        ({"storage": {"acessMode": "x"}}, "acessMode"),
        ({"webReplicas": "3"}, "webReplicas"),
    ],
)
def test_mistaken_value_is_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=named):
        render(**values)


def test_two_releases_in_a_namespace_keep_their_pods_apart() -> None:
    """Requests for one would reach the web server, and so the database, of the other."""
    pods, selectors = {}, {}
    for release in ("production", "staging"):
        for item in objects(render(release)):
            if item["kind"] == "Deployment":
                pods[item["metadata"]["name"]] = item["spec"]["template"]["metadata"]["labels"].items()
                selectors[item["metadata"]["name"]] = item["spec"]["selector"]["matchLabels"].items()
            elif item["kind"] == "Service":
                assert item["spec"]["selector"].items() == selectors[f"{release}-web"]
    for name, selector in selectors.items():
        assert [pod for pod, labels in pods.items() if selector <= labels] == [name]


def test_settings_reach_the_server_as_they_are_written() -> None:
    """Helm reads each number as a floating one, which it writes as 1e+06."""
    options = {"bucket_name": "logs", "location": "a&b"}
    text = render(settings={
        "max_queue_size": 1_000_000, "min_runtime_seconds": 2_592_000, "tick_seconds": 0.25, "mcp": False,
        "currency": "1e3", "log_storage_options": options,
    })  # fmt: skip
    for container in containers(text):
        env = read({entry["name"]: entry["value"] for entry in container["env"] if "_FILE" not in entry["name"]})
        assert (env.max_queue_size, env.min_runtime_seconds, env.tick_seconds) == (1_000_000, 2_592_000, 0.25)
        assert (env.mcp, env.currency, json.loads(env.log_storage_options)) == (False, "1e3", options)


def test_chart_and_compose_run_real_commands_with_real_settings() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    server = {name: service for name, service in services.items() if name != "database"}
    assert set(server) == {"migrate", "web", "cycles", "housekeeping"}
    commands = [service["command"] for service in server.values()]
    commands += [container["args"] for container in containers(render())]
    assert {command[0] for command in commands} == {"migrate", "web", "worker"} <= set(get_commands())
    for text in (COMPOSE.read_text(), render()):
        names = set(re.findall(r"GPUSCHED_[A-Z_]+", text)) - {"GPUSCHED_NAME"}
        assert {name.removesuffix("_FILE") for name in names} <= SETTINGS


def test_secrets_of_the_guide_can_be_read_by_the_user_of_the_image(tmp_path: Path) -> None:
    """Compose mounts the files as they are, and the image's user is not the owner of these. Their folder is private."""
    (tmp_path / "deploy").mkdir()
    [script] = [block.text for block in blocks(ROOT / "docs/how-to/containers.md") if "openssl" in block.text]
    subprocess.run(["bash", "-euc", f"umask 077; {script}"], cwd=tmp_path, check=True, timeout=60)
    folder = tmp_path / "deploy" / "secrets"
    modes = {f"./secrets/{file.name}": stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    named = [secret["file"] for secret in yaml.safe_load(COMPOSE.read_text())["secrets"].values()]
    assert modes == dict.fromkeys(named, 0o644)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_probe_asks_an_address_that_answers(client: Client) -> None:
    [web] = [container for container in containers(render()) if "readinessProbe" in container]
    probe = web["readinessProbe"]["httpGet"]
    [header] = probe["httpHeaders"]
    [allowed] = [entry["value"] for entry in web["env"] if entry["name"] == "GPUSCHED_ALLOWED_HOSTS"]
    assert header["name"] == "Host" and header["value"] in allowed.split(",")
    assert client.get(probe["path"], headers={"host": header["value"]}).status_code == 200


def test_containers_are_confined() -> None:
    for container in containers(render()):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and context["capabilities"] == {"drop": ["ALL"]}


if __name__ == "__main__":
    GOLDEN.write_text(render())

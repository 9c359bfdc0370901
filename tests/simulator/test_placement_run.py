"""`manage.py simulate placement`: the experiment, the formats that it reads, and the goal on the real trace."""

import gzip
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from scheduling.engine.model import Request
from scheduling.simulator.errors import InputError
from scheduling.simulator.runs.placement import fill
from scheduling.simulator.traces.openb import gpus_of, read_nodes, read_requests

OPENB = Path(__file__).parents[3] / "shared" / "traces" / "openb"
NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{n},64000,262144,{4 + 4 * (n % 2)},T4\n" for n in range(12))
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
a,4000,8192,1,1000,
b,2000,4096,1,460,
c,8000,16384,2,1000,T4|P100
d,16000,65536,4,1000,
e,6000,2048,0,0,
f,30000,8192,1,1000,
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv.gz"
    nodes.write_text(NODES)
    pods.write_bytes(gzip.compress(PODS.encode()))
    return nodes, pods


def simulated(files: tuple[Path, Path], *more: str) -> str:
    out = StringIO()
    call_command("simulate", "placement", "--nodes", str(files[0]), "--pods", str(files[1]), *more, stdout=out)
    return out.getvalue()


def figures(files: tuple[Path, Path], *more: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(simulated(files, *more, "--json").splitlines()[-1])
    return result


def test_the_lists_are_read_as_nodes_and_requests(files: tuple[Path, Path]) -> None:
    nodes, requests = read_nodes(files[0]), read_requests(files[1])
    assert len(nodes) == 12 and sum(len(node.devices) for node in nodes) == 72
    assert (nodes[0].cpu_milli_free, nodes[0].memory_mb_free, nodes[0].devices[0].model) == (64_000, 262_144, "T4")
    assert requests[1] == Request(1, 460, (), True, 2000, 4096)
    assert requests[2] == Request(2, None, ("T4", "P100"), False, 8000, 16_384)
    assert [gpus_of(request) for request in requests] == [1, 0.46, 2, 4, 0, 1]


def test_allocation_is_counted_in_gpus(files: tuple[Path, Path]) -> None:
    """All demand of whole GPUs, CPU for each: everything that arrives is placed, up to the last request that fits."""
    files[1].write_bytes(gzip.compress(b"cpu_milli,memory_mib,num_gpu,gpu_milli\n1000,1,1,500\n"))
    one = fill(read_nodes(files[0]), read_requests(files[1]), "fragmentation", seed=1)
    assert (one.allocated_percent, one.placed, one.refused) == (100.0, 144, 0)


def test_command_reports_the_mean_and_the_spread_of_all_seeds(files: tuple[Path, Path]) -> None:
    result = figures(files, "--policy", "fair", "--seeds", "3")
    each = [
        fill(read_nodes(files[0]), read_requests(files[1]), "fragmentation", n).allocated_percent for n in (1, 2, 3)
    ]
    assert result["allocation_percent"]["mean"] == pytest.approx(sum(each) / 3, abs=1e-3)
    assert result["allocation_percent"]["sd"] > 0 and result["ms_per_placement"] > 0
    assert (result["seeds"], result["placement"]) == (3, "fragmentation")


def test_the_same_seeds_give_the_same_figures(files: tuple[Path, Path]) -> None:
    """A21"""
    assert figures(files, "--seeds", "2")["allocation_percent"] == figures(files, "--seeds", "2")["allocation_percent"]


def test_command_prints_a_table_without_json(files: tuple[Path, Path]) -> None:
    text = simulated(files, "--seeds", "2")
    assert "allocated %" in text and "mean" in text and "fragmentation" in text


def test_fragmentation_allocates_more_than_any_node_with_room(files: tuple[Path, Path]) -> None:
    best, anywhere = (figures(files, "--policy", name, "--seeds", "8") for name in ("fragmentation", "random"))
    assert best["allocation_percent"]["mean"] > anywhere["allocation_percent"]["mean"] + 1


@pytest.mark.parametrize(
    ("nodes", "pods", "sentence"),
    [
        (
            NODES.replace("n3,64000", "n3,many"),
            PODS,
            "nodes.csv, line 5, column 'cpu_milli': 'many' is not a whole number.",
        ),
        (NODES.replace("model", "type"), PODS, "nodes.csv, line 1, column 'model': the header has no such column."),
        ("sn,cpu_milli,memory_mib,gpu,model\n", PODS, "nodes.csv lists no node with a GPU."),
        (
            NODES,
            PODS.replace("1,460", "1,1460"),
            "pods.csv.gz, line 3, column 'gpu_milli': 1460 is not from 1 to 1000.",
        ),
        (NODES, PODS.splitlines()[0] + "\n", "pods.csv.gz lists no request for a GPU."),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_line_and_column(
    files: tuple[Path, Path], nodes: str, pods: str, sentence: str
) -> None:
    files[0].write_text(nodes)
    files[1].write_bytes(gzip.compress(pods.encode()))
    with pytest.raises(CommandError) as refused:
        simulated(files)
    assert str(refused.value).endswith(sentence)


def test_a_file_that_is_not_gzip_is_refused(files: tuple[Path, Path]) -> None:
    files[1].write_text("no gzip")
    with pytest.raises(InputError, match=r"pods\.csv\.gz, line 1: it is no CSV file"):
        read_requests(files[1])


def test_unknown_policy_is_refused_by_name(files: tuple[Path, Path]) -> None:
    with pytest.raises(CommandError, match="No policy and no placement is named 'worst'"):
        simulated(files, "--policy", "worst")


@pytest.mark.skipif(not OPENB.is_dir(), reason="the traces are not here (../shared/traces)")
def test_the_published_method_is_beaten_on_the_openb_trace() -> None:
    """FGD as published reaches 95.23 % in the mean of ten seeds; here one of ours (95.8 with a spread of 0.1)."""
    nodes = read_nodes(OPENB / "openb_node_list_gpu_node.csv.gz")
    requests = read_requests(OPENB / "openb_pod_list_default.csv.gz")
    assert fill(nodes, requests, "fragmentation", seed=1).allocated_percent > 95.4


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plot_shows_how_the_cluster_fills_up(files: tuple[Path, Path], tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"fill.{suffix}"
    simulated(files, "--seeds", "2", "--plot", str(target))
    assert target.stat().st_size > 1000
    if suffix == "svg":
        assert target.read_text().count('stroke="#1d4ed8"') == 2

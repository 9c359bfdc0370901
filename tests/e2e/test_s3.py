"""Logs on S3, with real processes: complete to the byte after kill -9 of the web process, and nothing on the disk (A40)."""

import json
from collections.abc import Iterator

import boto3
import pytest

from tests.jobs.test_s3_logs import REGION, server
from tests.system.stack import A100, Stack
from tests.waiting import wait_for

__all__ = ["server"]  # a fixture
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
LINES = 2000
PRINT = f'i=0; while [ $i -lt {LINES} ]; do echo "line $i"; i=$((i+1)); [ $((i % 100)) = 0 ] && sleep 0.2; done; true'


@pytest.fixture
def stack(server: str) -> Iterator[Stack]:
    options = {
        "bucket_name": "e2e",
        "endpoint_url": server,
        "region_name": REGION,
        "access_key": "k",
        "secret_key": "s",
    }
    boto3.client(
        "s3", endpoint_url=server, region_name=REGION, aws_access_key_id="k", aws_secret_access_key="s"
    ).create_bucket(Bucket="e2e")
    storage = {"log_storage": "storages.backends.s3.S3Storage", "log_storage_options": json.dumps(options)}
    with Stack(**storage) as running:
        running.agent("--pretend", f"1:{A100}:81920:2:8:65536", name="n")
        wait_for(lambda: running.client().status().online_nodes == 1, 60, "the node")
        yield running


def test_log_on_s3_is_complete_after_a_kill_of_the_web_process(stack: Stack) -> None:
    client = stack.client()
    job = client.submit(["sh", "-c", PRINT], gpus=0).id
    wait_for(lambda: "line 99\n" in client.logs(job).text, 60, "the first lines")
    assert stack.kill("daphne")
    wait_for(stack.is_ready, 60, "the server")
    assert client.wait(job, timeout=120).state == "completed"
    whole = "".join(f"line {number}\n" for number in range(LINES))
    wait_for(lambda: client.logs(job).text == whole, 60, "the whole log")
    assert not list((stack.data_dir / "logs").rglob("*.log"))

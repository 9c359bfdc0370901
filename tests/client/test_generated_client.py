"""The blocking client is generated from the async one."""

import inspect

import pytest

from deploy.sync_client import COMMAND, SOURCE, TARGET, generate
from gpusched.client import ArrayElement, AsyncArrayElement, AsyncClient, AsyncJob, Client, Job


def test_blocking_client_equals_its_source() -> None:
    """`make check` fails otherwise."""
    written = {path: path.read_text() for path in TARGET.glob("*.py") if path.name != "__init__.py"}
    assert written == generate(), f"run `{COMMAND}`"
    assert {path.name for path in written} | {"__init__.py"} == {path.name for path in SOURCE.glob("*.py")}
    for path, text in written.items():
        assert text.startswith(f"# Written from gpusched/client/aio/{path.name} by `{COMMAND}`")


@pytest.mark.parametrize(
    ("blocking", "awaited"), [(Client, AsyncClient), (Job, AsyncJob), (ArrayElement, AsyncArrayElement)]
)
def test_both_clients_have_equal_methods(blocking: type, awaited: type) -> None:
    def methods(kind: type) -> dict[str, tuple[list[str], str | None]]:
        members = {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}
        return {
            name: (list(inspect.signature(value).parameters), inspect.getdoc(value))
            for name, value in members.items()
            if inspect.isfunction(value)
        }

    assert methods(blocking) == methods(awaited)
    assert all(doc for _, doc in methods(blocking).values())

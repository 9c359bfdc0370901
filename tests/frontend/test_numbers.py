"""Numbers on pages."""

import pytest

from frontend.ui.formatting import number


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "n/a"), (0, "0"), (2.0, "2"), (0.0137, "0.01"), (1234.567, "1,234.57"), (0.00208, "0.0021"),
     (0.00001, "0.00001"), (-0.004, "-0.004"), (1e-12, "0")],
)  # fmt: skip
def test_small_amount_is_not_shown_as_zero(value: float | None, text: str) -> None:
    assert number(value) == text

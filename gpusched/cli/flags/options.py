"""Options that several commands share."""

from typing import Annotated

import typer

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
TenantOption = Annotated[
    str | None,
    typer.Option("--tenant", "-t", help="The tenant; required only if you belong to several.", show_default=False),
]

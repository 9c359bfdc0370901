"""How a job looks where its value is shown: a line in a console, a table in a notebook."""

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusched.client.models import JobData


def as_line(job: "JobData") -> str:
    """<job 42 train: running on n1>"""
    where = f" on {', '.join(job.nodes)}" if job.nodes else ""
    why = f": {job.reason.sentence}" if job.reason and job.reason.sentence else ""
    name = f" {job.name}" if job.name else ""
    return f"<job {job.id}{name} is {job.state}{where}{why}>"


def as_html(job: "JobData") -> str:
    """A table of what people ask first. Names and sentences are other people's text, and escaped."""
    rows = {
        "job": f"{job.id} {job.name}".rstrip(),
        "state": job.state,
        "why": job.reason.sentence if job.reason else "",
        "tenant, user": f"{job.tenant}, {job.user}",
        "GPUs": f"{job.gpu_count} {job.gpu_model or ''}".rstrip(),
        "nodes": ", ".join(job.nodes),
        "exit code": "" if job.exit_code is None else str(job.exit_code),
    }
    cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items() if text)
    return f"<table>{cells}</table>"

"""Pages learn that the database does not answer."""

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from frontend.live import db_threads, invalidation
from frontend.live import hub as hubs
from gpusched.lib.db.connections import connection_parameters
from tests.factories import submit
from tests.frontend.page import Page, cookie_of, live_hub

pytestmark = pytest.mark.django_db(transaction=True)
BLIND = '"blind_seconds"'


async def test_alive_reports_database_outage(anna, monkeypatch):
    """Not only of one that is gone; otherwise the page would call old rows live. It hears when that is over."""
    monkeypatch.setattr(hubs, "ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(db_threads, "TIMEOUT_SECONDS", 0.3)
    async with live_hub(monkeypatch):
        page = await Page(await sync_to_async(cookie_of)(anna), ["jobs"]).connect()
        await page.until(lambda: "jobs" in page.rows)
        assert not any(BLIND in message for message in page.heard)
        async with await psycopg.AsyncConnection.connect(**connection_parameters()) as locking:
            await locking.execute("LOCK TABLE jobs_job IN ACCESS EXCLUSIVE MODE")
            await page.subscribe("jobs")
            await page.until(lambda: BLIND in page.heard[-1])
        await page.until(lambda: '"alive"' in page.heard[-1] and BLIND not in page.heard[-1])
        await page.leave()
    await sync_to_async(connections.close_all)()


async def test_failed_load_is_retried(anna, ours, monkeypatch):
    """A52: no other bell rings for it, and no look is due for long."""
    monkeypatch.setattr(invalidation, "LOAD_ANYWAY_SECONDS", 3600.0)
    async with live_hub(monkeypatch) as hub:
        page = await Page(await sync_to_async(cookie_of)(anna), ["jobs"]).connect()
        await page.until(lambda: "jobs" in page.rows)
        load, failed = hub._db.load, list[bool]()

        async def fails_once(work):
            if failed:
                return await load(work)
            failed.append(True)
            return None

        monkeypatch.setattr(hub._db, "load", fails_once)
        job_id = await sync_to_async(submit)(anna, ours)
        await page.until(lambda: str(job_id) in page.rows["jobs"])
        assert failed
        await page.leave()
    await sync_to_async(connections.close_all)()

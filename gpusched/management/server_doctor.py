"""The checks of `gpusched-server doctor`: what an operator should correct before it costs a secret, a job or data.

Each check takes its facts as arguments and returns findings; `examine` collects the facts."""

import asyncio
import ipaddress
import shutil
import socket
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread

import psycopg
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.db import OperationalError, ProgrammingError, connection, transaction
from django.db.models import Q
from django.db.models.functions import Coalesce
from psycopg.errors import LockNotAvailable

from gpusched.env import Env
from gpusched.lib.db import requirements
from gpusched.lib.db.sql import Row, database_now, execute, query
from gpusched.lib.process.backups import last_backup
from gpusched.protocol.addresses import split
from gpusched.protocol.findings import FAIL, MAX_SKEW_SECONDS, OK, SOME_SKEW_SECONDS, WARN, Finding
from gpusched.settings import database_url
from nodes.models import Node
from nodes.streams.heads import Heads
from tenants.models import ApiToken

OLD_TOKEN, UNUSED_TOKEN = timedelta(days=365), timedelta(days=90)
SLOW_ROTATION = timedelta(days=1)
SCARCE_DISK, FULL_DISK = 0.10, 0.02
RECENT_BACKUP, STALE_BACKUP = timedelta(days=2), timedelta(days=14)
# Listeners, notifiers, workers and their children, and some for an operator.
OTHER_CONNECTIONS = 20
# A session may keep others waiting this long, and a transaction, such as that of a backup, may be open this long.
BLOCKED_SECONDS, OPEN_SECONDS = 10.0, 3600.0
# This command waits this long for a table that another session has locked.
LOCK_SECONDS = 5.0
# An object storage that does not answer is tried again for minutes by its library.
STORAGE_SECONDS = 20.0
_LISTENING = "0A"
# PgBouncer's error for a client that waited this long for one of its connections.
_NO_POOLED = "query_wait_timeout"
_SETTINGS = (
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "max_connections",
    "idle_session_timeout",
    "idle_in_transaction_session_timeout",
    "statement_timeout",
    "lock_timeout",
    "server_version_num",
)


# Sessions that others wait for while they wait for none themselves, or whose transaction is old. PostgreSQL hides the
# times of other users' sessions from most users, but not who waits for them.
_OPEN_TRANSACTIONS = """
    WITH waits AS (
        SELECT blocker, count(DISTINCT w.pid) AS waiting, max(clock_timestamp() - w.query_start) AS longest
          FROM pg_stat_activity w CROSS JOIN unnest(pg_blocking_pids(w.pid)) AS b (blocker)
         WHERE w.wait_event_type = 'Lock' GROUP BY blocker)
    SELECT a.pid, a.usename AS user, a.application_name AS program, coalesce(w.waiting, 0) AS waiting,
           extract(epoch FROM coalesce(w.longest, clock_timestamp() - a.xact_start))::float8 AS seconds
      FROM pg_stat_activity a LEFT JOIN waits w ON w.blocker = a.pid
     WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
       AND a.wait_event_type IS DISTINCT FROM 'Lock'
       AND (w.longest > make_interval(secs => %s) OR a.xact_start < clock_timestamp() - make_interval(secs => %s))
     ORDER BY w.longest DESC NULLS LAST, a.xact_start
"""


def examine(env: Env, data_dir: Path, now: datetime) -> list[Finding]:
    """Return all findings about this server. Without the database, return those that do not need it."""
    findings = [*check_tls(env, listening(env.http_port)), *check_last_backup(data_dir, now)]
    heads = split(env.heads)
    findings += check_heads(heads, asyncio.run(Heads(heads).faults()))
    if env.log_storage:
        findings += check_storage(env.log_storage)
    findings += [finding for folder in _folders(env, data_dir) for finding in check_disk(folder)]
    try:
        if unmet := requirements.first_unmet():
            return [*findings, Finding("requirements", FAIL, unmet.sentence, unmet.next_step)]
        database_time = database_now()
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [list(_SETTINGS)])
            values = dict(cursor.fetchall())
        # Before tables that a session may have locked.
        findings += check_transactions(query(_OPEN_TRANSACTIONS, [BLOCKED_SECONDS, OPEN_SECONDS]))
        with transaction.atomic():
            execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS:g}s'")
            # By their state: only nodes that report have a clock to compare.
            online = Node.objects.filter(removed_at=None, state="online")
            clocks = dict(online.values_list("name", "clock_off_seconds"))
            tokens, agents = _tokens(now), _agents(now)
    except (OperationalError, psycopg.OperationalError) as error:
        if isinstance(error.__cause__, LockNotAvailable):
            return [*findings, _LOCKED]
        return [*findings, _unreachable(data_dir, _connections(env), error)]
    except ProgrammingError as error:
        return [*findings, _other_tables(error)]
    findings += [*check_tokens(tokens), *check_agents(*agents)]
    findings += check_clocks((now - database_time).total_seconds(), clocks)
    return [*findings, *check_database(values, env)]


def listening(port: int) -> list[str]:
    """Return the addresses of this machine that something listens on at this port."""
    addresses = []
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/net/{table}")  # tcp6 is missing if the kernel has no IPv6
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            local, state = line.split()[1], line.split()[3]
            host, _, number = local.partition(":")
            if state == _LISTENING and int(number, 16) == port:
                addresses.append(_address(host))
    return addresses


def check_tls(env: Env, addresses: Sequence[str]) -> Iterator[Finding]:
    """Without TLS, tokens and passwords cross the network for everyone to read."""
    at = list(addresses) or [env.http_host]
    public = sorted({address for address in at if not _is_loopback(address)})
    step = "set GPUSCHED_HTTP_HOST=127.0.0.1, and start with --tls NAME (docs/how-to/tls.md)"
    if not public:
        yield Finding("tls", OK, f"port {env.http_port} is open to this machine only")
    elif env.behind_tls or env.tls_name:
        sentence = f"port {env.http_port} is open on {', '.join(public)}, so clients can go past the TLS proxy"
        yield Finding("tls", WARN, sentence, "set GPUSCHED_HTTP_HOST to the address that the proxy connects to")
    else:
        yield Finding("tls", FAIL, f"port {env.http_port} is open on {', '.join(public)} without TLS", step)


def check_backup(last: "tuple[datetime, Path] | None", now: datetime) -> Iterator[Finding]:
    step = "run gpusched-server backup daily, and copy its file to another machine"
    if last is None:
        yield Finding("backup", WARN, "there is no backup of this server", step)
        return
    at, file = last
    if at > now + timedelta(seconds=MAX_SKEW_SECONDS):
        sentence = f"the last one is dated {at:%Y-%m-%d %H:%M} UTC, in the future: the clock was ahead then: {file}"
        yield Finding("backup", WARN, sentence, "make a new backup, and look when that file was written")
        return
    sentence = f"the last one is {(now - at).total_seconds() / 86_400:.1f} days old: {file}"
    if now - at > STALE_BACKUP:
        yield Finding("backup", FAIL, sentence, step)
    elif now - at > RECENT_BACKUP:
        yield Finding("backup", WARN, sentence, step)
    else:
        yield Finding("backup", OK, sentence)


def check_last_backup(data_dir: Path, now: datetime) -> Iterator[Finding]:
    try:
        yield from check_backup(last_backup(data_dir), now)
    except PermissionError as error:
        sentence = f"this user cannot read {error.filename}, the record of the last one"
        step = f"give it to the user of the server: chown --reference={data_dir} {error.filename}"
        yield Finding("backup", WARN, sentence, step)
    except (LookupError, TypeError, ValueError):
        yield Finding("backup", WARN, f"the record of the last one in {data_dir} is damaged", "make a new backup")


def check_heads(heads: Sequence[str], faults: Sequence[str]) -> Iterator[Finding]:
    """A head that cannot be asked has agents whose jobs no stream from here reaches."""
    for fault in faults:
        step = "check that it runs, its address in GPUSCHED_HEADS, and that it has the same secret key and time"
        yield Finding("heads", WARN, fault, step)
    if heads and not faults:
        yield Finding("heads", OK, f"all answer: {', '.join(heads)}")


def check_disk(folder: Path) -> Iterator[Finding]:
    """A full disk stops submits, logs and, with the embedded one, the database."""
    try:
        total, _, free = shutil.disk_usage(folder)
    except OSError as error:
        step = "mount or create it, for the user of the server"
        yield Finding("disk", FAIL, f"{folder} cannot be read: {error.strerror}", step)
        return
    part = free / max(total, 1)
    level = FAIL if part < FULL_DISK else WARN if part < SCARCE_DISK else OK
    step = "free some space, or move the directory to a larger disk" if level != OK else ""
    yield Finding("disk", level, f"{free / 2**30:,.1f} GiB ({part:.0%}) are free for {folder}", step)


def check_storage(name: str) -> Iterator[Finding]:
    """Without its storage, no log and no large input or result is stored. Write a small object, read it and delete
    it."""
    done: list[Exception | None] = []
    thread = Thread(target=lambda: done.append(_storage_failure()), name="storage", daemon=True)
    thread.start()
    thread.join(STORAGE_SECONDS)
    step = "correct GPUSCHED_LOG_STORAGE_OPTIONS, or the rights of its key; agents keep logs until then"
    if not done:
        yield Finding("storage", FAIL, f"{name} has not answered in {STORAGE_SECONDS:g} s", step)
    elif done[0] is not None:
        error = " ".join(str(done[0]).split()) or type(done[0]).__name__
        yield Finding("storage", FAIL, f"{name} cannot store, read and delete: {error}", step)
    else:
        yield Finding("storage", OK, f"{name} stores, reads and deletes")


def _storage_failure() -> Exception | None:
    text = uuid.uuid4().hex.encode()
    try:
        storage = storages["logs"]
        name = storage.save(f"doctor/{text.decode()}", ContentFile(text))
        with storage.open(name) as file:
            found = file.read()
        storage.delete(name)
    except Exception as error:  # noqa: BLE001 each storage raises its own
        return error
    return None if found == text else OSError("it returned other bytes than were written")


def check_tokens(old: Sequence[str]) -> Iterator[Finding]:
    """`old`: those valid tokens that are older than a year, or not used for three months."""
    if old:
        sentence = f"{len(old)} valid tokens are older than a year, or unused for three months: {_named(old)}"
        yield Finding("tokens", WARN, sentence, "gpusched token revoke ID, and create new ones with an end")
    else:
        yield Finding("tokens", OK, "none is older than a year or unused")


def check_agents(old: Sequence[str], waiting: Sequence[str]) -> Iterator[Finding]:
    """`old`: nodes whose agents' credentials are older than a year. `waiting`: online nodes that were asked for a new
    one more than a day ago."""
    if old:
        sentence = f"the credentials of {len(old)} agents are older than a year: {_named(old)}"
        yield Finding("agents", WARN, sentence, "gpusched node rotate-credential NODE")
    if waiting:
        sentence = f"{len(waiting)} agents have not replaced their credential since they were asked: {_named(waiting)}"
        yield Finding("agents", WARN, sentence, "upgrade these agents, and read their logs")
    if not old and not waiting:
        yield Finding("agents", OK, "no credential is older than a year")


def check_clocks(off_seconds: float, nodes: Mapping[str, float | None]) -> Iterator[Finding]:
    """`off_seconds`: by which this machine is ahead of the database. `nodes`: by which each is ahead of the server."""
    step = "run a time service on both (chrony, systemd-timesyncd)"
    sentence = f"this machine and the database differ by {abs(off_seconds):.1f} s"
    yield Finding("clock", level := _skew_level(off_seconds), sentence, step if level != OK else "")
    wrong = {name: off for name, off in nodes.items() if off is not None and _skew_level(off) != OK}
    if wrong:
        worst = max(wrong.values(), key=abs)
        named = ", ".join(f"{name} by {off:+.0f} s" for name, off in sorted(wrong.items())[:5])
        yield Finding("node_clocks", _skew_level(worst), f"{len(wrong)} nodes differ from this server: {named}", step)
    else:
        yield Finding("node_clocks", OK, f"{len(nodes)} online nodes agree with this server")


def check_database(values: Mapping[str, str], env: Env) -> Iterator[Finding]:
    """Settings without which committed jobs can be lost, or connections be cut."""
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        if values[name] == "off":
            sentence = f"{name} is off: a crash can lose jobs that clients were promised"
            yield Finding(name, FAIL, sentence, f"ALTER SYSTEM SET {name} = on, and reload PostgreSQL")
        else:
            yield Finding(name, OK, values[name])
    needed = _connections(env)
    if int(values["max_connections"]) < needed:
        sentence = f"max_connections is {values['max_connections']}; this server can need {needed}"
        yield Finding("max_connections", FAIL, sentence, "raise it, or lower GPUSCHED_WEB_THREADS")
    else:
        yield Finding("max_connections", OK, f"{values['max_connections']}; this server can need {needed}")
    for name in ("idle_session_timeout", "idle_in_transaction_session_timeout"):
        if values[name] != "0":
            sentence = f"{name} is {values[name]} ms: PostgreSQL cuts connections that wait for changes"
            yield Finding(name, WARN, sentence, f"ALTER ROLE … SET {name} = 0 for gpusched's user")
        else:
            yield Finding(name, OK, "none")
    for name in ("statement_timeout", "lock_timeout"):
        if values[name] != "0":
            sentence = f"{name} is {values[name]} ms: what takes longer fails, and so may scheduling cycles"
            yield Finding(name, WARN, sentence, f"ALTER ROLE … SET {name} = 0 for gpusched's user")
    if (version := int(values["server_version_num"]) // 10_000) < 16:
        yield Finding("version", WARN, f"PostgreSQL {version} is not tested", "upgrade it to 16")


def check_transactions(rows: Sequence[Row]) -> Iterator[Finding]:
    """`rows`: of sessions that others wait for (`waiting`, for `seconds`), or whose transaction is `seconds` old. One
    that a person forgot can stop all scheduling."""
    for row in rows:
        session = f"session {row['pid']} of {row['user']}" + (f" ({row['program']})" if row["program"] else "")
        step = f"if nothing needs it, end it: SELECT pg_terminate_backend({row['pid']})"
        if row["waiting"]:
            others = f"{row['waiting']} other{'s' if row['waiting'] > 1 else ''}"
            sentence = f"{session} has kept {others} waiting for {row['seconds']:,.0f} s"
            yield Finding("transactions", FAIL, sentence, step)
        else:
            sentence = f"{session} has had one open for {row['seconds'] / 3600:,.1f} h: deleted rows keep their space"
            yield Finding("transactions", WARN, sentence, step)
    if not rows:
        yield Finding("transactions", OK, "none keeps others waiting or is old")


def _connections(env: Env) -> int:
    return env.web_threads * env.web_processes + OTHER_CONNECTIONS


_LOCKED = Finding(
    "database", FAIL, f"its tables are locked for more than {LOCK_SECONDS:g} s; its other checks did not run",
    "end the session that the check `transactions` names, or wait if it is a migration",
)  # fmt: skip


def _other_tables(error: ProgrammingError) -> Finding:
    sentence = f"its tables cannot be read: {str(error).splitlines()[0]}"
    step = "run gpusched-server migrate, and check the rights of the database's user; its other checks did not run"
    return Finding("database", FAIL, sentence, step)


def _unreachable(data_dir: Path, needed: int, error: Exception) -> Finding:
    if not database_url():
        step = "set GPUSCHED_DATA_DIR to the server's data directory, or GPUSCHED_DATABASE_URL"
        return Finding("database", FAIL, f"no server has used the data directory {data_dir}", step)
    if _NO_POOLED in str(error):
        step = f"raise default_pool_size to {needed} for each server; the other checks did not run"
        return Finding("database", FAIL, f"PgBouncer has no connection left for this check: {_NO_POOLED}", step)
    step = "start it, or correct GPUSCHED_DATABASE_URL; its other checks did not run"
    return Finding("database", FAIL, f"it does not answer: {str(error).strip()}", step)


def _folders(env: Env, data_dir: Path) -> list[Path]:
    return [data_dir, Path(env.files_dir).absolute()] if env.files_dir else [data_dir]


def _tokens(now: datetime) -> list[str]:
    valid = ApiToken.objects.filter(revoked_at=None).filter(Q(expires_at=None) | Q(expires_at__gt=now))
    unused = Q(created_at__lt=now - UNUSED_TOKEN) & (Q(last_used_at=None) | Q(last_used_at__lt=now - UNUSED_TOKEN))
    old = valid.filter(Q(created_at__lt=now - OLD_TOKEN) | unused).select_related("user").order_by("created_at")
    return [f"{token.pk} of {token.user.username} ({token.name})" for token in old]


def _agents(now: datetime) -> tuple[list[str], list[str]]:
    nodes = Node.objects.filter(removed_at=None).annotate(issued_at=Coalesce("credential_at", "joined_at"))
    old = nodes.filter(issued_at__lt=now - OLD_TOKEN).order_by("issued_at")
    waiting = nodes.filter(state="online", rotation_asked_at__lt=now - SLOW_ROTATION).order_by("name")
    return list(old.values_list("name", flat=True)), list(waiting.values_list("name", flat=True))


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _skew_level(seconds: float) -> str:
    if abs(seconds) > MAX_SKEW_SECONDS:
        return FAIL
    return WARN if abs(seconds) > SOME_SKEW_SECONDS else OK


def _address(text: str) -> str:
    """Return the address that /proc writes as hexadecimal words in the machine's order of bytes."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False

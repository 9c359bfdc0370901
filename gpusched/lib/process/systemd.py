"""Units of systemd for the parts of a server, and readiness as systemd expects it."""

import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpusched.agent.host.service import quoted

TARGET = "gpusched.target"
# The settings of all units.
SETTINGS = Path("/etc/gpusched/server.env")
# Of the server's parts, which need the network and their own directory only.
_HARDENING = """\
User={user}
Group={user}
StateDirectory=gpusched
StateDirectoryMode=0700
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
{writable}ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
CapabilityBoundingSet=
SystemCallArchitectures=native
SystemCallFilter=@system-service
"""
_SERVER = """\
# Written by `gpusched-server install`. To change it: systemctl edit {name}
[Unit]
Description=gpusched {title}
After=network-online.target{after}
Wants=network-online.target
{requires}{mounts}PartOf={target}
StartLimitIntervalSec=0

[Service]
Type={type}
# Settings: NAME=value per line (docs/settings.md). Secrets belong here, not into units.
EnvironmentFile=-{settings}
Environment=GPUSCHED_DATA_DIR=/var/lib/gpusched PYTHONUNBUFFERED=1
{commands}{restart}\
# Stop the part only, which ends its own children: a worker whose children get the signal, too, waits for them for ever.
KillMode=mixed
TimeoutStartSec={start_seconds}
{hardening}"""
_TARGET = """\
# Written by `gpusched-server install`: starts and stops all parts of the server.
[Unit]
Description=gpusched
Wants={wants}

[Install]
WantedBy=multi-user.target
"""
# systemd restarts no command that ends by itself, and its whole run counts as its start.
_RESTART = "Restart=always\nRestartSec=1\n"
DATABASE, BACKUP = "gpusched-database.service", "gpusched-backup.service"
_KEPT_BACKUPS = 14
_TIMER = """\
# Written by `gpusched-server install`. To change it: systemctl edit gpusched-backup.timer
[Unit]
Description=gpusched daily backup
PartOf=gpusched.target

[Timer]
OnCalendar=daily
RandomizedDelaySec=1h
# After a night without power.
Persistent=true
"""


@dataclass(frozen=True)
class Installation:
    """Where the programs are, and the Unix user of the server. `has_database`: it uses the embedded PostgreSQL.
    `writable`: directories outside /var/lib/gpusched into which the parts write, such as that of the files."""

    programs: Path
    user: str = "gpusched"
    has_database: bool = True
    writable: Sequence[Path] = ()


def settings_of_units(file: Path) -> Mapping[str, str]:
    """Return the variables in the settings of the units, as systemd reads them; none if there is no file."""
    pairs = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            value = value.strip()
            is_quoted = value[:1] in ("'", '"') and value.endswith(value[:1])
            pairs[name.strip()] = shlex.split(value)[0] if is_quoted and len(value) > 2 else value.strip("'\"")
    return pairs


def server_units(where: Installation) -> dict[str, str]:
    """Return the units of the server by file name."""
    server = quoted(where.programs / "gpusched-server")
    units = {}
    if where.has_database:
        units[DATABASE] = _unit(where, DATABASE, "database", [f"ExecStart={server} database"], type="notify")
    # The web server migrates first, and counts as started once it answers.
    web = [f"ExecStartPre={server} migrate", f"ExecStart={server} web", f"ExecStartPost={server} ready --wait 240"]
    units["gpusched-web.service"] = _unit(where, "gpusched-web.service", "web server", web)
    for name in ("cycles", "housekeeping"):
        unit = f"gpusched-{name}.service"
        units[unit] = _unit(where, unit, name, [f"ExecStart={server} worker {name}"])
    units["gpusched-backup.timer"] = _TIMER
    target = _TARGET.format(wants=" ".join(units))
    backup = [f"ExecStart={server} backup --keep {_KEPT_BACKUPS}"]
    return {TARGET: target, **units, BACKUP: _unit(where, BACKUP, "backup", backup, type="oneshot")}


def notify_ready() -> None:
    """Report to systemd that this process is ready, if systemd waits for that (sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
            notifications.connect("\0" + address[1:] if address.startswith("@") else address)
            notifications.send(b"READY=1")


def _unit(where: Installation, name: str, title: str, commands: list[str], type: str = "exec") -> str:
    needs = [DATABASE] if where.has_database and name != DATABASE else []
    needs += ["gpusched-web.service"] if "worker" in commands[0] else []
    return _SERVER.format(
        name=name,
        title=title,
        target=TARGET,
        type=type,
        after="".join(f" {unit}" for unit in needs),
        requires=f"Wants={' '.join(needs)}\n" if needs else "",
        mounts="".join(f"RequiresMountsFor={quoted(path)}\n" for path in where.writable),
        settings=SETTINGS,
        commands="".join(f"{command}\n" for command in commands),
        restart="" if type == "oneshot" else _RESTART,
        start_seconds="infinity" if type == "oneshot" else 300,
        hardening=_HARDENING.format(
            user=where.user, writable="".join(f"ReadWritePaths={quoted(path)}\n" for path in where.writable)
        ),
    )

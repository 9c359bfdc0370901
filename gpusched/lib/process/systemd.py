"""Units of systemd for the parts of a server, and readiness as systemd expects it."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

TARGET = "gpusched.target"
# Of the server's parts, which need the network and their own directory only.
_HARDENING = """\
User={user}
Group={user}
StateDirectory=gpusched
StateDirectoryMode=0700
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
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
{requires}PartOf={target}
StartLimitIntervalSec=0

[Service]
Type={type}
# Settings: NAME=value per line (docs/settings.md). Secrets belong here, not into units.
EnvironmentFile=-/etc/gpusched/server.env
Environment=GPUSCHED_DATA_DIR=/var/lib/gpusched PYTHONUNBUFFERED=1
{commands}Restart=always
RestartSec=1
# Stop the part only, which ends its own children: a worker whose children get the signal, too, waits for them for ever.
KillMode=mixed
TimeoutStartSec=300
{hardening}"""
_TARGET = """\
# Written by `gpusched-server install`: starts and stops all parts of the server.
[Unit]
Description=gpusched
Wants={wants}

[Install]
WantedBy=multi-user.target
"""
_DATABASE = "gpusched-database.service"


@dataclass(frozen=True)
class Installation:
    """Where the programs are, and as whom the server runs. `has_database`: it uses the embedded PostgreSQL."""

    programs: Path
    user: str = "gpusched"
    has_database: bool = True


def server_units(where: Installation) -> dict[str, str]:
    """Return the units of the server by file name."""
    server = where.programs / "gpusched-server"
    units = {}
    if where.has_database:
        units[_DATABASE] = _unit(where, _DATABASE, "database", [f"ExecStart={server} database"], type="notify")
    # The web server migrates first, and counts as started once it answers.
    web = [f"ExecStartPre={server} migrate", f"ExecStart={server} web", f"ExecStartPost={server} ready --wait 240"]
    units["gpusched-web.service"] = _unit(where, "gpusched-web.service", "web server", web)
    for name in ("cycles", "housekeeping"):
        unit = f"gpusched-{name}.service"
        units[unit] = _unit(where, unit, name, [f"ExecStart={server} worker {name}"])
    return {TARGET: _TARGET.format(wants=" ".join(units)), **units}


def notify_ready() -> None:
    """Report to systemd that this process is ready, if systemd waits for that (sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
            notifications.connect("\0" + address[1:] if address.startswith("@") else address)
            notifications.send(b"READY=1")


def _unit(where: Installation, name: str, title: str, commands: list[str], type: str = "exec") -> str:
    needs = [_DATABASE] if where.has_database and name != _DATABASE else []
    needs += ["gpusched-web.service"] if "worker" in commands[0] else []
    return _SERVER.format(
        name=name,
        title=title,
        target=TARGET,
        type=type,
        after="".join(f" {unit}" for unit in needs),
        requires=f"Wants={' '.join(needs)}\n" if needs else "",
        commands="".join(f"{command}\n" for command in commands),
        hardening=_HARDENING.format(user=where.user),
    )

"""The systemd unit that starts the service at each login.

References: systemd.exec(5), systemd.service(5), user_namespaces(7).
"""

from __future__ import annotations

_UNIT = """\
[Unit]
Description=casemate: sessions, runs and approvals of sandboxed programs
Documentation=man:systemd.exec(5)

[Service]
Type=exec
ExecStart={python} -P -m casemate service --drain 30
# The first signal drains, a second ends it at once; what still runs then is killed with the group.
KillMode=mixed
TimeoutStopSec=60
Restart=on-failure
RestartSec=2
UMask=0077
# Limits of cells are those of cgroups where the service may divide its own.
Delegate=cpu memory pids
# Nothing here needs to gain privileges; cells have user namespaces of their own and none beyond.
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
MemoryDenyWriteExecute=no
# Not set, since each would take away what walls are made of: RestrictNamespaces=, PrivateUsers=, ProtectProc=,
# ProtectKernelTunables=, PrivateMounts=, SystemCallFilter= (namespaces, mounts, /proc and seccomp of the cells' own).

[Install]
WantedBy=default.target
"""


def unit(python: str) -> str:
    """A user unit that starts the service with the interpreter at ``python``."""
    return _UNIT.format(python=python.replace("%", "%%").replace(" ", "\\x20"))

"""Files that start the service elsewhere. Pure.

Facts: systemd.exec(5), systemd.service(5), user_namespaces(7), Containerfile(5).
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

_CONTAINER = """\
# The service in a container. Its walls are made of user namespaces, mounts and seccomp filters of their own, which
# default Docker forbids: run as it is there, the service starts, and refuses every program, since it has no wall.
# It is given one by an engine that permits these to an unprivileged user of the container:
#
#   podman run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt unmask=ALL \\
#     -v casemate-state:/state -p 127.0.0.1:8321:8321 casemate
#   docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined \\
#     --security-opt systempaths=unconfined -v casemate-state:/state -p 127.0.0.1:8321:8321 casemate
#
# The host must permit unprivileged user namespaces: kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu 24.04 and
# newer), user.max_user_namespaces above 0. "casemate doctor" in the container says what is missing. With these options
# the container itself holds less: the walls of the cells, not the container, are what programs meet.
FROM docker.io/library/python:3.13-slim
RUN pip install --no-cache-dir casemate \\
 && useradd --create-home --uid 10001 casemate \\
 && install -d -o casemate -g casemate -m 700 /state
USER casemate
ENV XDG_STATE_HOME=/state PYTHONUNBUFFERED=1
VOLUME /state
EXPOSE 8321
# Make a token first: podman run --rm -v casemate-state:/state casemate service token add NAME --operator
# Plain HTTP stays within the container's network; put TLS in front of it, or give --tls-cert and --tls-key.
HEALTHCHECK CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8321/v1/health')"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["casemate"]
CMD ["service", "--listen", "0.0.0.0:8321", "--plain-http", "--drain", "8"]
"""


def unit(python: str) -> str:
    """A user unit that starts the service with the interpreter at ``python``."""
    return _UNIT.format(python=python.replace("%", "%%").replace(" ", "\\x20"))


def container() -> str:
    """A Containerfile, which says what its walls need of the engine."""
    return _CONTAINER

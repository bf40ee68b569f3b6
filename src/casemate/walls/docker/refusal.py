"""Explains why there are no containers here, with a command that helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casemate.errors import WallUnavailable

if TYPE_CHECKING:
    from casemate.walls.docker.containers import ContainerTerms
    from casemate.walls.docker.engine import Engine

_RUNTIMES = {
    "runsc": "apt-get install runsc (https://gvisor.dev/docs/user_guide/install), then: runsc install, and "
    "systemctl restart docker",
}
_MAPPING = ("name=rootless", "name=userns")  # in an engine's SecurityOptions


def check(engine: Engine, terms: ContainerTerms) -> ContainerTerms:
    """Check that the engine answers and has the image and the runtime. Returns ``terms`` completed with their facts.
    Blocks. Raises ``WallUnavailable``."""
    from casemate.walls.docker.engine import EngineError

    try:
        info = engine.call("GET", "/info")
        if "BuildahVersion" in info:
            raise _refusal(
                "podman",
                f"The container engine at {engine.address} is Podman, which cannot isolate a cell: it cannot limit the "
                "number of files on a tmpfs, and its seccomp filter lets programs make namespaces.",
                "Use Docker: apt-get install docker.io. If both are installed: DOCKER_HOST=unix:///var/run/docker.sock",
            )
        known = info.get("Runtimes") or {}
        image = engine.call("GET", f"/images/{terms.image}/json")
    except PermissionError:
        raise _refusal(
            "engine_permission",
            f"This user may not use the container engine at {engine.address}.",
            "As root: usermod -aG docker USER, and log in again. Members of that group are root on the machine.",
        ) from None
    except OSError as error:
        raise _refusal(
            "no_engine",
            f"The container engine at {engine.address} does not answer: {error.strerror or error}.",
            "Start it: systemctl start docker",
        ) from None
    except EngineError as error:
        if error.status != 404:
            raise explain(str(error), terms) from None
        raise _refusal(
            "no_image",
            f"The container engine at {engine.address} has no image {terms.image}.",
            f"In casemate's repository: docker build -f packaging/Dockerfile -t {terms.image} . or name another "
            "(image, CASEMATE_IMAGE)",
        ) from None
    if terms.runtime and known and terms.runtime not in known:
        raise _refusal(
            "no_runtime",
            f"The container engine at {engine.address} has no runtime {terms.runtime}; it has "
            f"{', '.join(sorted(known))}.",
            _RUNTIMES.get(terms.runtime, "Add it to the runtimes in /etc/docker/daemon.json, and restart the engine."),
        )
    maps_users = any(option in _MAPPING for option in info.get("SecurityOptions") or ())
    return terms._replace(
        maps_users=maps_users,
        volumes=tuple((image.get("Config") or {}).get("Volumes") or ()),
        engine_version=str(info.get("ServerVersion") or ""),
        image_id=str(image.get("Id") or ""),
    )


def explain(detail: str, terms: ContainerTerms) -> WallUnavailable:
    """Explain why a container could not be started."""
    runtime = f" with {terms.runtime}" if terms.runtime else ""
    return _refusal(
        "engine",
        f"The container engine could not start a container of {terms.image}{runtime}: {detail}",
        "The image needs python3 and this version of casemate. See the engine's log: journalctl -u docker",
    )


def _refusal(reason: str, message: str, remedy: str) -> WallUnavailable:
    return WallUnavailable(message, reason=reason, remediation=remedy)

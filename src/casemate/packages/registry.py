"""The same gateway for npm: the host serves what the operator's registry has, as npm's registries do.

Pages of packages are read and written anew, with what an installer needs of them and addresses of ours; files are those
that such a page has named, and their ``dist.integrity`` or ``dist.shasum`` is checked before they go in. Whatever else
npm would ask for, such as audits, is refused.

Sources: npm's package metadata (npm/registry, package-metadata.md), Subresource Integrity (W3C).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

import h11

from casemate.model.plan import DOOR
from casemate.packages.gateway import Answer, Gateway, Served
from casemate.packages.names import node_name
from casemate.packages.npm_config import registry_for
from casemate.packages.pages import Link
from casemate.packages.upstream import Unfetched

_ACCEPT = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8"
_TYPE = "application/vnd.npm.install-v1+json"
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+-]{0,127}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_MOST_VERSIONS = 50_000
_MOST_NAMES = 5000  # that one installation may ask for
_INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")
# What of a version an installer decides by. Scripts are told of by hasInstallScript, and come in the file itself.
_KEPT = (
    *("dependencies", "optionalDependencies", "peerDependencies", "peerDependenciesMeta", "bundleDependencies"),
    *("bundledDependencies", "bin", "directories", "engines", "os", "cpu", "libc", "deprecated"),
)


@dataclass(frozen=True, slots=True)
class _Whose:
    name: str
    version: str
    bundles: bool


@dataclass(slots=True)
class Registry(Gateway):
    """One installation's. ``served`` is by name and version: ``left-pad@1.3.0``."""

    _documents: dict[str, asyncio.Lock] = field(default_factory=dict)
    _written: dict[str, bytes] = field(default_factory=dict)
    _whose: dict[str, _Whose] = field(default_factory=dict)  # by the address of the file

    async def _found(self, path: str, request: h11.Request) -> Answer:  # noqa: ARG002 - npm takes what it gets
        if path in self._files:
            return await self._fetched(path, self._files[path])
        name = node_name(unquote(path.removeprefix("/")))
        if name is None:
            return Answer(404, body=b"no name of a package, and no file that a page has named\n")
        async with self._documents.setdefault(name, asyncio.Lock()):
            if name not in self._written:
                self._written[name] = await self._document(name)
        body = self._written[name]
        return Answer(200, _TYPE, body) if body else Answer(404, "application/json", b"{}")

    async def _document(self, name: str) -> bytes:
        """The page of a package, as it is served here; empty where there is none."""
        if len(self._documents) > _MOST_NAMES:
            raise Unfetched(f"one installation may ask for {_MOST_NAMES} packages, and no more")
        index = registry_for(name, self.upstream.indexes)
        found = await self.upstream.document(index, f"{index.url}{quote(name, safe='@')}", _ACCEPT)
        if found is None:
            return b""
        body, _, address = found
        try:
            page = await asyncio.to_thread(json.loads, body)
            return self._rewritten(name, page, address)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise Unfetched(f"what the registry says of {name} cannot be read: {type(error).__name__}") from None

    def _rewritten(self, name: str, page: Mapping[str, Any], address: str) -> bytes:
        versions = {}
        for number, said in list(page["versions"].items())[:_MOST_VERSIONS]:
            link = _link_in(said, address) if _VERSION.fullmatch(number) else None
            if link is None:
                continue
            path = f"/{name}/-/{name.rpartition('/')[2]}-{number}.tgz"
            self._files[path] = link
            bundles = bool(said.get("bundleDependencies") or said.get("bundledDependencies"))
            self._whose[link.url] = _Whose(name, number, bundles)
            dist = {"tarball": f"http://{DOOR}{path}", **_hashes_of(said["dist"])}
            kept = {key: said[key] for key in _KEPT if key in said}
            kept["hasInstallScript"] = bool(said.get("hasInstallScript")) or _has_script(said.get("scripts"))
            versions[number] = {**kept, "name": name, "version": number, "dist": dist}
        tags = {tag: number for tag, number in page.get("dist-tags", {}).items() if number in versions}
        return json.dumps({"name": name, "dist-tags": tags, "versions": versions}).encode()

    def _note(self, link: Link, sha256: str, size: int) -> None:
        whose = self._whose[link.url]
        served = Served(link.filename, link.url, sha256, size, whose.name, whose.version, whose.bundles)
        self.served[f"{whose.name}@{whose.version}"] = served


def _has_script(scripts: object) -> bool:
    return isinstance(scripts, dict) and any(name in scripts for name in _INSTALL_SCRIPTS)


def _link_in(said: Mapping[str, Any], address: str) -> Link | None:
    """The file of a version; None where it has none that can be checked."""
    dist = said["dist"]
    url = urljoin(address, str(dist["tarball"]))
    algorithm, digest = _strongest(dist)
    if urlsplit(url).scheme not in ("http", "https") or not digest:
        return None
    return Link(
        unquote(urlsplit(url).path.rpartition("/")[2])[:250], url, algorithm=algorithm, digest=digest, page=address
    )


def _strongest(dist: Mapping[str, Any]) -> tuple[str, str]:
    """The algorithm, and the hash by it in hexadecimal digits; both empty where none is said."""
    said = dict(one.partition("-")[::2] for one in str(dist.get("integrity") or "").split())
    for algorithm in ("sha512", "sha384", "sha256"):
        if algorithm in said:
            try:
                return algorithm, base64.b64decode(said[algorithm].partition("?")[0], validate=True).hex()
            except binascii.Error:
                return "", ""
    shasum = dist.get("shasum")
    return ("sha1", shasum) if isinstance(shasum, str) and _SHA1.fullmatch(shasum) else ("", "")


def _hashes_of(dist: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(dist[key]) for key in ("integrity", "shasum") if dist.get(key)}

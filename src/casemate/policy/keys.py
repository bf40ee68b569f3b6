"""The keys of a policy file and the types of their values, as pydantic checks them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    create_model,
)

from casemate.errors import InvalidArgument
from casemate.model.foreign import key_hint
from casemate.model.isolation import Strength
from casemate.model.limits import LIMIT_BOUNDS
from casemate.model.plan import Network
from casemate.policy.document import PolicyDocument
from casemate.policy.host import USUAL_PATH
from casemate.policy.hosts import MOST_PORT

Size = StrictStr | StrictInt
Number = StrictInt | StrictFloat
Names = Annotated[list[StrictStr], Field(max_length=1000)]


class _KeyModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_STRICT: dict[str, Any] = {"size": Size, "whole": StrictInt, "number": Number, "seconds": Number}
_LIMITS: dict[str, Any] = {name: (_STRICT[bounds.form] | None, None) for name, bounds in LIMIT_BOUNDS.items()}
if TYPE_CHECKING:
    LimitKeys = _KeyModel
else:
    LimitKeys = create_model("LimitKeys", __base__=_KeyModel, **_LIMITS)  # casemate.Limits checks the ranges


class RequestKeys(_KeyModel):
    """One of ``requests:``: what may be asked of a host where requests are seen."""

    host: StrictStr
    methods: Annotated[list[Annotated[StrictStr, Field(pattern=r"^[A-Z]{1,20}$")]], Field(max_length=20)] | None = None
    path: Annotated[StrictStr, Field(pattern=r"^/[!-~]*$", max_length=1000)] = "/"


class RootKeys(_KeyModel):
    """One of ``host.roots``: a folder of the host's."""

    path: StrictStr
    write: StrictBool = False


class HostKeys(_KeyModel):
    """What of the host is open to agents; without this section nothing is."""

    folder: StrictStr | None = None
    path: Annotated[list[StrictStr], Field(min_length=1, max_length=20)] = [*USUAL_PATH]
    env: Annotated[dict[StrictStr, StrictStr], Field(max_length=100)] = {}
    timeout: Annotated[Number, Field(gt=0, le=3600)] = 60.0
    output: Annotated[StrictInt, Field(ge=1, le=16 << 20)] = 1 << 20
    roots: Annotated[list[RootKeys], Field(max_length=100)] = []


class WebKeys(_KeyModel):
    """``web:``: who is asked in searches of the web."""

    searxng: Annotated[StrictStr, Field(max_length=1000)] | None = None
    engines: list[Literal["brave", "duckduckgo", "grokipedia", "mojeek", "startpage", "wikipedia", "yahoo"]] = []


class IsolationKeys(_KeyModel):
    """The weakest wall that will do; any name of one is then an argument's."""

    at_least: Strength


class PolicyKeys(_KeyModel):
    """What may cross the wall, and how much may be used."""

    network: Network | None = None
    allowed_domains: Names | None = None
    denied_domains: Names | None = None
    allow_local: Annotated[list[Annotated[StrictInt, Field(ge=1, le=MOST_PORT)]], Field(max_length=100)] | None = None
    requests: Annotated[list[RequestKeys], Field(max_length=1000)] | None = None
    intercept: Annotated[list[StrictStr], Field(max_length=100)] | None = None
    trust: StrictStr | None = None
    web: WebKeys | None = None
    limits: LimitKeys | None = None
    workspace: StrictStr | None = None
    workspace_mode: Literal["overlay", "direct", "review"] | None = None
    allow_read: Names | None = None
    isolation: StrictStr | IsolationKeys | None = None
    host: HostKeys | None = None
    previews: StrictBool | None = None
    rules: Annotated[list[dict[StrictStr, Any]], Field(max_length=2000)] | None = None
    defaults: dict[StrictStr, Literal["allow", "ask", "deny"]] | None = None


class SandboxKeys(PolicyKeys):
    """The further arguments of a ``Sandbox``, in a file for ``Sandbox.from_file``."""

    image: StrictStr | None = None
    runtime: StrictStr | None = None
    output_dir: StrictStr | None = None
    environment: StrictStr | Names | None = None
    preload: Names | None = None
    approval_timeout: Number | None = None
    audit: StrictStr | None = None
    audit_sync: Literal["grouped", "row"] | None = None
    audit_anchors: Names | None = None
    audit_max_age: Number | None = None
    audit_max_size: StrictInt | StrictStr | None = None
    namespace: StrictStr | None = None
    concurrency: StrictInt | None = None
    package_indexes: Names | None = None
    tools: StrictStr | dict[StrictStr, dict[StrictStr, Any]] | None = None


_MAY_BE_SECRET = ("package_indexes", "tools")  # addresses with passwords, headers: not in messages
ARGUMENTS_ONLY = tuple(name for name in SandboxKeys.model_fields if name not in PolicyKeys.model_fields)


def checked_keys(document: PolicyDocument, *, arguments: bool) -> SandboxKeys:
    """The document's keys and values; with ``arguments`` those of a ``Sandbox``, too.

    Raises ``InvalidArgument`` that names the file, the line and the key, and what would be right.
    """
    if not arguments and (further := [name for name in document.values if name in ARGUMENTS_ONLY]):
        raise InvalidArgument(
            "policy",
            f"{document.where((further[0],))}: {further[0]}: is an argument of a sandbox and no policy",
            remediation="Leave it out, or give the file as configuration (CASEMATE_CONFIG).",
        )
    try:
        return SandboxKeys.model_validate(dict(document.values))
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_context=True)
        if unknown := [one["loc"] for one in errors if one["type"] == "extra_forbidden"]:
            raise InvalidArgument("policy", "\n".join(_unknown_key(document, path) for path in unknown)) from None
        first, *more = errors
        path = first["loc"] if first["type"] == "missing" else _path_in_document(document.values, first["loc"])
        name = ".".join(str(part) for part in path)
        others = [one["msg"] for one in more if path == _path_in_document(document.values, one["loc"]) != first["loc"]]
        raise InvalidArgument("policy", f"{document.where(path)}: {name}: {_explain(first, path, others)}") from None


def _path_in_document(values: Any, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """What of ``path`` is in the document: after that, pydantic names the type that it has tried."""
    for place, part in enumerate(path):
        is_there = part in values if isinstance(values, Mapping) else isinstance(values, list) and isinstance(part, int)
        if not is_there:
            return path[:place] or path
        values = values[part]
    return path


def _unknown_key(document: PolicyDocument, path: tuple[str | int, ...]) -> str:
    """What is wrong with a key that there is not, and which is meant."""
    below: dict[object, type[BaseModel]] = {
        "limits": LimitKeys, "requests": RequestKeys, "host": HostKeys, "web": WebKeys,
    }  # fmt: skip
    known = below.get(path[0], SandboxKeys) if len(path) > 1 else SandboxKeys
    likely, name = key_hint(str(path[-1]), known.model_fields), ".".join(map(str, path))
    problem = f"is no key that casemate knows{likely or ';'} the keys here are {', '.join(known.model_fields)}"
    return f"{document.where(path)}: {name}: {problem}"


def _explain(error: Any, path: tuple[str | int, ...], others: Sequence[str]) -> str:
    if path[0] in _MAY_BE_SECRET:
        return f"{error['msg'][0].lower()}{error['msg'][1:]}"
    given = (
        error["input"] if isinstance(error["input"], str | int | float | bool | None) else type(error["input"]).__name__
    )
    if error["type"] in ("model_type", "dict_type"):
        return f"{given!r}: is no mapping of keys to values"
    kinds = [one.removeprefix("Input should be ") for one in others]
    return " or ".join([f"{given!r}: {error['msg'][0].lower()}{error['msg'][1:]}", *dict.fromkeys(kinds)])

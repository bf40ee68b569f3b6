"""Arguments and results of tools: JSON objects with attributes, texts, images, audio, resources, links and errors."""

import binascii

from ._wire import InvalidArguments, ToolDenied, ToolError, ToolTimeout, ToolUnavailable, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar


class _Unset:
    """The value of an omitted parameter, which is not sent. (None is sent, as null.)"""

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET: "Any" = _Unset()


class Object(dict):  # type: ignore[type-arg]
    """A dictionary with the keys of the wire, whose values are also attributes. An absent optional key is None as an
    attribute; use ``key in object`` to tell."""

    _rows_: "ClassVar[tuple[Any, ...]]" = ()
    _keywords_: "ClassVar[dict[str, Any]]" = {}
    _attributes_: "ClassVar[dict[str, Any]]" = {}
    _keys_: "ClassVar[dict[str, Any]]" = {}
    _closed_ = False
    _open_ = True
    _content_: "list[Any]"

    def __init__(self, /, **values: "Any") -> None:
        super().__init__()
        for name, value in values.items():
            if value is UNSET:
                continue
            row = self._keywords_.get(name) or self._keys_.get(name)
            if row is None and not self._open_:
                more = (
                    "" if self._closed_ else f" (keys that it does not list: {type(self).__name__}.from_wire({{...}}))"
                )
                raise InvalidArguments(
                    f"{type(self).__name__} has no {name!r}; it has {', '.join(self._keywords_)}{more}"
                )
            key = name if row is None else row[0]
            self[key] = value if row is None else make_objects(value, row[4])
        missing = [row[1] for row in self._rows_ if row[3] and row[0] not in self]
        if missing:
            raise InvalidArguments(f"{type(self).__name__} needs {', '.join(missing)}")

    @classmethod
    def _define(cls, rows: "list[tuple[Any, ...]]", *, closed: bool, open: bool) -> None:
        """``rows``: key, keyword, attribute, whether it is required, shape, and its allowed values if few."""
        cls._rows_ = tuple(rows)
        cls._keys_ = {row[0]: row for row in rows}
        cls._keywords_ = {row[1]: row for row in rows}
        cls._attributes_ = {row[2]: row for row in rows}
        cls._closed_ = closed
        cls._open_ = open or (not rows and not closed)

    @classmethod
    def from_wire(cls, data: "Any", *, free: bool = False) -> "Any":
        """Make an object from JSON ``data``, unchecked; unknown keys are kept. ``free``: nested objects without a class
        get attributes, too."""
        output = cls.__new__(cls)
        for key, value in dict(data).items():
            row = cls._keys_.get(key)
            dict.__setitem__(output, key, make_objects(value, None if row is None else row[4], free))
        return output

    def to_wire(self) -> "dict[str, Any]":
        """Return the plain dictionaries and lists that are sent."""
        sent: "dict[str, Any]" = plain(self)
        return sent

    def model_dump(self, **_: "Any") -> "dict[str, Any]":
        """Same as `to_wire`, under pydantic's name."""
        return self.to_wire()

    @classmethod
    def _fits(cls, data: "dict[str, Any]") -> bool:
        """Whether ``data`` may belong to this class rather than another."""
        if cls._closed_ and any(key not in cls._keys_ for key in data):
            return False
        for key, _, _, required, _, exact in cls._rows_:
            if key not in data:
                if required:
                    return False
            elif exact is not None and not any(type(data[key]) is type(one) and data[key] == one for one in exact):
                return False
        return True

    if not TYPE_CHECKING:  # type checkers know only the attributes that a class lists

        def __getattr__(self, name: str) -> "Any":
            row = self._attributes_.get(name)
            key = name if row is None else row[0]
            if key in self and not name.startswith("__"):
                return self[key]
            if row is not None and not row[3]:
                return None
            known = ", ".join([*self._attributes_, *(key for key in self if key not in self._keys_)])
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {known or 'nothing'}")

        def __setattr__(self, name: str, value: "Any") -> None:
            row = self._attributes_.get(name)
            if row is None and name.startswith("_"):
                object.__setattr__(self, name, value)
            elif row is None and not self._open_:
                raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self._attributes_)}")
            elif value is UNSET:
                self.pop(name if row is None else row[0], None)
            else:
                self[name if row is None else row[0]] = value if row is None else make_objects(value, row[4])

        def __delattr__(self, name: str) -> None:
            row = self._attributes_.get(name)
            try:
                del self[name if row is None else row[0]]
            except KeyError:
                raise AttributeError(name) from None

    def __dir__(self) -> "list[str]":
        return [*super().__dir__(), *self._attributes_, *(key for key in self if key.isidentifier())]

    def __repr__(self) -> str:
        names = {row[0]: row[2] for row in self._rows_}
        return f"{type(self).__name__}({', '.join(f'{names.get(key, key)}={value!r}' for key, value in self.items())})"


class Output(str):
    """A tool's text. ``content`` has everything: texts, images, audio, resources and links."""

    content: "list[Any]"

    def __new__(cls, text: str = "", content: "tuple[Any, ...] | list[Any]" = ()) -> "Output":
        output = super().__new__(cls, text)
        output.content = list(content)
        return output

    def __getnewargs__(self) -> "tuple[Any, ...]":
        return (str(self), self.content)

    @property
    def text(self) -> str:
        return str(self)

    @property
    def images(self) -> "list[Any]":
        return [block for block in self.content if isinstance(block, Image)]

    def json(self) -> "Any":
        """Parse the text as JSON, with attributes. Raises ``ValueError``."""
        import json

        return make_objects(json.loads(self), None, True)

    def _repr_mimebundle_(self, include: "Any" = None, exclude: "Any" = None) -> "dict[str, Any] | None":
        images = self.images
        return {"text/plain": repr(self), images[0].media_type: images[0].data} if images else None


class Items(list):  # type: ignore[type-arg]
    """A list from a tool."""

    _content_: "list[Any]"


def content_of(result: "Any") -> "list[Any]":
    """Return everything that came with a tool's result: texts, images, audio, resources and links."""
    return list(getattr(result, "content" if isinstance(result, Output) else "_content_", ()))


def result_of(answer: "dict[str, Any]", shape: "Any", server: str) -> "Any":
    """Return the result in the host's answer: the structured one if present, else an `Output`."""
    content = answer.get("content") or []
    if "structured" not in answer:
        blocks = blocks_of(content, server)
        return Output("\n".join(block.text for block in blocks if getattr(block, "text", None)), blocks)
    value = make_objects(answer["structured"], shape, True)
    if type(value) is list:
        value = Items(value)
    if isinstance(value, (Object, Items)) and content:
        value._content_ = blocks_of(content, server)
    return value


def make_objects(value: "Any", shape: "Any", free: bool = False) -> "Any":
    """Convert ``value`` to objects of the classes in ``shape``: a class; ``[s]``; ``{"": s}``; ``(s, s)`` for
    alternatives; or None for no conversion. Values that do not fit are left unchanged."""
    if isinstance(shape, tuple):
        shape = _choose_shape(value, shape)
    if isinstance(value, dict):
        if isinstance(shape, type):
            return value if isinstance(value, shape) else shape.from_wire(value, free=free)  # type: ignore[attr-defined]
        inner = shape[""] if isinstance(shape, dict) else None
        if inner is None and not free:
            return value
        table = {key: make_objects(item, inner, free) for key, item in value.items()}
        return Object.from_wire(table) if free else table
    if isinstance(value, (list, tuple)):
        inner = shape[0] if isinstance(shape, list) else None
        return [make_objects(item, inner, free) for item in value] if inner is not None or free else value
    return value


def _choose_shape(value: "Any", shapes: "tuple[Any, ...]") -> "Any":
    if isinstance(value, dict):
        classes = [shape for shape in shapes if isinstance(shape, type)]
        tables = [shape for shape in shapes if isinstance(shape, dict)]
        return next((one for one in classes if one._fits(value)), tables[0] if tables else None)  # type: ignore[attr-defined]
    return next((shape for shape in shapes if isinstance(shape, list)), None)


def plain(value: "Any") -> "Any":
    """Convert ``value`` to plain dictionaries and lists, without unset values."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not UNSET}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


class Text:
    """A piece of text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Text({self.text!r})"


class Blob:
    """Bytes with a ``media_type``, shown as media if possible."""

    def __init__(self, data: bytes, media_type: str = "application/octet-stream", uri: str = "") -> None:
        self.data, self.media_type, self.uri = data, media_type, uri

    def save(self, path: "Any") -> None:
        """Write the bytes to the file ``path``."""
        with open(path, "wb") as file:
            file.write(self.data)

    def _repr_mimebundle_(self, include: "Any" = None, exclude: "Any" = None) -> "dict[str, Any]":
        return {"text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.media_type}, {len(self.data)} bytes)"


class Image(Blob):
    """A picture."""

    def to_pil(self) -> "Any":
        """Return a Pillow image, if Pillow is installed."""
        from importlib import import_module
        from io import BytesIO

        return import_module("PIL.Image").open(BytesIO(self.data))

    def _repr_mimebundle_(self, include: "Any" = None, exclude: "Any" = None) -> "dict[str, Any]":
        text = self.media_type == "image/svg+xml"
        data = self.data.decode("utf-8", "replace") if text else binascii.b2a_base64(self.data, newline=False).decode()
        return {"text/plain": repr(self), self.media_type: data}

    def _repr_png_(self) -> "bytes | None":
        return self.data if self.media_type == "image/png" else None

    def _repr_jpeg_(self) -> "bytes | None":
        return self.data if self.media_type == "image/jpeg" else None


class Audio(Blob):
    """A recording."""


class Resource:
    """An embedded resource: its ``text``, and ``data``, its bytes."""

    def __init__(self, uri: str, media_type: str, text: "str | None", data: "bytes | None") -> None:
        self.uri, self.media_type, self.text = uri, media_type, text
        self.data = data if data is not None else (text or "").encode("utf-8", "surrogatepass")

    def __repr__(self) -> str:
        return f"Resource({self.uri!r}, {self.media_type or 'no type'}, {len(self.data)} bytes)"


class Link:
    """A resource that can be read: ``uri``, ``name``, ``description``, ``media_type``."""

    def __init__(self, block: "dict[str, Any]", server: str = "") -> None:
        self.uri, self.name = str(block.get("uri", "")), str(block.get("name", ""))
        self.description, self.media_type = str(block.get("description") or ""), str(block.get("mimeType") or "")
        self._server = server

    def read(self) -> "list[Any]":
        """Read it. Returns resources. Raises ``ToolError``; reading may need approval."""
        answer = ask_or_raise({"do": "read", "server": self._server, "uri": self.uri})
        return [_resource(each) for each in answer.get("content") or [] if isinstance(each, dict)]

    def __repr__(self) -> str:
        return f"Link({self.uri!r}, {self.name!r})"


def blocks_of(content: "Any", server: str = "") -> "list[Any]":
    """Return objects for MCP's content blocks. A block of an unknown kind becomes an `Object`."""
    return [_block(each, server) for each in content if isinstance(each, dict)] if isinstance(content, list) else []


def _block(block: "dict[str, Any]", server: str) -> "Any":
    kind = block.get("type")
    if kind == "text":
        return Text(str(block.get("text", "")))
    if kind in ("image", "audio"):
        make = Image if kind == "image" else Audio
        return make(_bytes(block.get("data")), str(block.get("mimeType") or "application/octet-stream"))
    if kind == "resource" and isinstance(block.get("resource"), dict):
        return _resource(block["resource"])
    if kind == "resource_link":
        return Link(block, server)
    return Object.from_wire(block, free=True)


def _resource(found: "dict[str, Any]") -> "Any":
    uri, media_type, text = str(found.get("uri", "")), str(found.get("mimeType") or ""), found.get("text")
    if "blob" not in found:
        return Resource(uri, media_type, str(text) if text is not None else "", None)
    data = _bytes(found["blob"])
    if media_type.startswith("image/"):
        return Image(data, media_type, uri)
    return Resource(uri, media_type, None, data)


def _bytes(data: "Any") -> bytes:
    try:
        return binascii.a2b_base64(data if isinstance(data, str) else "")
    except ValueError:
        return b""


_KINDS = {"denied": ToolDenied, "unavailable": ToolUnavailable, "unknown": ToolUnavailable, "timeout": ToolTimeout,
          "invalid": InvalidArguments}  # fmt: skip


def ask_or_raise(request: "dict[str, Any]", timeout: "float | None" = None) -> "dict[str, Any]":
    """Like `ask`, but raises ``ToolError`` unless the answer is a success."""
    answer = ask(request, timeout)
    if answer.get("ok") is not True:
        raise error_of(answer)
    return answer


def error_of(answer: "dict[str, Any]") -> ToolError:
    """Return the exception for a failed answer."""
    kind, message, content = answer.get("kind"), answer.get("message"), answer.get("content")
    blocks = blocks_of(content)
    error = _KINDS.get(kind, ToolError)(str(message or kind or "the call failed"), tuple(blocks))  # type: ignore[arg-type]
    if isinstance(kind, str):
        error.kind = kind
    return error

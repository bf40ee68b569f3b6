"""What tools give besides structured values: texts, images, audio, resources and links to them."""

import binascii

from ._objects import Object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Text:
    """A piece of text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Text({self.text!r})"


class Blob:
    """Bytes of a kind: ``data`` and ``media_type``; shown as what they are where that can be shown."""

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
        """The picture for Pillow, where that is installed."""
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
    """Something that came along: ``text``, or ``data``, its bytes."""

    def __init__(self, uri: str, media_type: str, text: "str | None", data: "bytes | None") -> None:
        self.uri, self.media_type, self.text = uri, media_type, text
        self.data = data if data is not None else (text or "").encode("utf-8", "surrogatepass")

    def __repr__(self) -> str:
        return f"Resource({self.uri!r}, {self.media_type or 'no type'}, {len(self.data)} bytes)"


class Link:
    """Something that may be read: ``uri``, ``name``, ``description``, ``media_type``."""

    def __init__(self, block: "dict[str, Any]", server: str = "") -> None:
        self.uri, self.name = str(block.get("uri", "")), str(block.get("name", ""))
        self.description, self.media_type = str(block.get("description") or ""), str(block.get("mimeType") or "")
        self._server = server

    def read(self) -> "list[Any]":
        """What is there, as resources. Raises ``ToolError``; whoever permits calls is asked for this one."""
        from ._errors import error_of
        from ._wire import ask

        answer = ask({"do": "read", "server": self._server, "uri": self.uri})
        if answer.get("ok") is not True:
            raise error_of(answer)
        return [_resource(each) for each in answer.get("content") or [] if isinstance(each, dict)]

    def __repr__(self) -> str:
        return f"Link({self.uri!r}, {self.name!r})"


def blocks_of(content: "Any", server: str = "") -> "list[Any]":
    """The objects for MCP's content blocks; one of a kind that nobody knows is an `Object`."""
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

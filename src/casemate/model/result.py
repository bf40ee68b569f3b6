"""What a program showed: MIME bundles, as Jupyter and E2B know them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class Result(Mapping[str, Any]):
    """One displayed object: a mapping of MIME type to data.

    Text types are ``str``, ``application/json`` is a Python value, binary types are base64
    ``str``, as in Jupyter. The attributes give the usual types, or None.
    """

    __slots__ = ("_bundle",)

    def __init__(self, bundle: Mapping[str, Any]) -> None:
        self._bundle = dict(bundle)

    def __getitem__(self, media_type: str) -> Any:
        return self._bundle[media_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bundle)

    def __len__(self) -> int:
        return len(self._bundle)

    def __repr__(self) -> str:
        return f"Result({', '.join(self._bundle)})"

    def _text(self, media_type: str) -> str | None:
        value = self._bundle.get(media_type)
        return value if isinstance(value, str) else None

    @property
    def text(self) -> str | None:
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        return self._text("text/markdown")

    @property
    def svg(self) -> str | None:
        return self._text("image/svg+xml")

    @property
    def png(self) -> str | None:
        """Base64 of the picture."""
        return self._text("image/png")

    @property
    def jpeg(self) -> str | None:
        """Base64 of the picture."""
        return self._text("image/jpeg")

    @property
    def pdf(self) -> str | None:
        """Base64 of the document."""
        return self._text("application/pdf")

    @property
    def latex(self) -> str | None:
        return self._text("text/latex")

    @property
    def json(self) -> Any:
        return self._bundle.get("application/json")


@dataclass(frozen=True, slots=True)
class Image:
    """A displayed picture: ``data`` in bytes, ``media_type`` ``image/png`` or ``image/jpeg``."""

    data: bytes
    media_type: str

    def save(self, path: str) -> None:
        """Write the picture to ``path``. Raises ``OSError``."""
        with open(path, "wb") as file:
            file.write(self.data)


def images_of(results: tuple[Result, ...]) -> tuple[Image, ...]:
    """The pictures among ``results``, one each; what is not valid base64 is left out."""
    images = []
    for result in results:
        for media_type in ("image/png", "image/jpeg"):
            encoded = result.get(media_type)
            if isinstance(encoded, str):
                try:
                    images.append(Image(base64.b64decode(encoded, validate=True), media_type))
                except ValueError:
                    continue
                break
    return tuple(images)


@dataclass(frozen=True, slots=True)
class ProgramError:
    """The language's uncaught exception: ``name`` of its type, ``value`` its message, ``traceback`` as printed."""

    name: str
    value: str
    traceback: str

"""Types as Python writes them, and the shapes by which the cell's runtime makes objects of JSON. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from casemate.tools.schemas.types import Anything, Array, Choice, Exact, Plain, Record, Scalar, Table, Type

Side = Literal["given", "had"]

_SCALARS = {"null": "None", "boolean": "bool", "integer": "int", "number": "float", "string": "str"}
WORDS = ("Any", "Literal", "Mapping", "Sequence", "bool", "dict", "float", "int", "list", "str")


class Annotations:
    """Annotations of one module. In a class a field hides a type of its name, so such a type is called ``_name`` there.

    ``hidden`` are the names of all fields of the module; ``given`` values may be plain dictionaries, those that one has
    are objects.
    """

    def __init__(self, hidden: Collection[str]) -> None:
        self.aliases = tuple(word for word in WORDS if word in hidden)

    def of(self, kind: Type, side: Side) -> str:
        """``kind`` as an annotation."""
        match kind:
            case Anything():
                return self.word("Any")
            case Scalar(kind=name):
                return _SCALARS[name] if name == "null" else self.word(_SCALARS[name])
            case Exact(values=values):
                return self._exact(values)
            case Array(item=item):
                return self._array(item, side)
            case Table(value=value):
                key = self.word("str")
                return f"{self.word('Mapping' if side == 'given' else 'dict')}[{key}, {self.of(value, side)}]"
            case Record(name=name):
                return f"{name} | {self.dictionary(kind)}" if side == "given" else name
            case Choice(options=options):
                return " | ".join(dict.fromkeys(self.of(option, side) for option in options))

    def dictionary(self, record: Record) -> str:
        """A dictionary that may be given for ``record``."""
        return (
            f"{self.word('Mapping')}[{self.word('str')}, {self.word('Any')}]" if record.open else f"{record.name}Dict"
        )

    def word(self, name: str) -> str:
        """A type's name that no field hides."""
        return f"_{name}" if name in self.aliases else name

    def _array(self, item: Type, side: Side) -> str:
        # A text is a sequence of texts, too, and would pass for one; a list of int is no list of float.
        textual = item == Scalar("string") or isinstance(item, Anything | Exact | Choice)
        kind = "list" if side == "had" or textual else "Sequence"
        return f"{self.word(kind)}[{self.of(item, side)}]"

    def _exact(self, values: tuple[Plain, ...]) -> str:
        if values == (None,):
            return "None"
        return f"{self.word('Literal')}[{', '.join(map(repr, values))}]"


def shape_of(kind: Type) -> str:
    """What the runtime reads (see guest/modules/mcptools/objects.py): a class; ``[s]`` a list; ``{"": s}`` a table;
    ``(s, s)`` a choice; ``None`` where nothing is to be made of the value."""
    match kind:
        case Record(name=name):
            return name
        case Array(item=item):
            return _around("[", shape_of(item), "]")
        case Table(value=value):
            return _around('{"": ', shape_of(value), "}")
        case Choice(options=options):
            shapes = [shape for shape in dict.fromkeys(map(shape_of, options)) if shape != "None"]
            return shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})" if shapes else "None"
        case _:
            return "None"


def exact_values(kind: Type) -> str:
    """The few texts that tell one record of a choice from another; empty for anything else."""
    if isinstance(kind, Exact) and len(kind.values) <= 4:
        return repr(kind.values)
    return ""


def _around(before: str, shape: str, after: str) -> str:
    return "None" if shape == "None" else f"{before}{shape}{after}"

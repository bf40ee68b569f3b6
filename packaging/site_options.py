"""A griffe extension for mkdocs.yml: signatures and docstrings list each option of ``**options: Unpack[...]``."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import griffe

from casemate.model.options import defaults_of, docs_of


class Options(griffe.Extension):  # type: ignore[misc] # griffe is installed only where the site is built
    """Replaces the options of a call, and the roles of docstrings, which Markdown does not have."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Keep the names in roles such as ``:class:`X```."""
        if obj.docstring:
            obj.docstring.value = re.sub(r":\w+:`([^`]+)`", r"`\1`", obj.docstring.value)

    def on_function(self, *, func: Any, **_: Any) -> None:
        """Give each option its type, its default and its meaning."""
        options = next((one for one in func.parameters if str(one.annotation).startswith("Unpack[")), None)
        if options is None:
            return
        known = _target(func.modules_collection[options.annotation.slice.canonical_path])
        definition = getattr(import_module(known.module.path), known.name)
        defaults, docs = defaults_of(definition), docs_of(definition)
        sections = func.docstring.parsed if func.docstring else []
        documented = next((one for one in sections if one.kind is griffe.DocstringSectionKind.parameters), None)
        if documented:
            documented.value = [one for one in documented.value if not one.name.startswith("**")]
        del func.parameters[options.name]
        for name, annotation in _annotations_of(known).items():
            fields = {"name": name, "annotation": annotation}
            kind, default = griffe.ParameterKind.keyword_only, repr(defaults[name])
            func.parameters.add(griffe.Parameter(**fields, kind=kind, default=default))
            if documented:
                shown = griffe.DocstringParameter(**fields, description=docs[name], value=default)
                documented.value.append(shown)


def _annotations_of(definition: Any) -> dict[str, Any]:
    """The type of each option of a TypedDict and its bases, without bounds and default."""
    found: dict[str, Any] = {}
    for base in definition.resolved_bases:
        found |= _annotations_of(_target(base))
    return found | {name: one.annotation.slice.elements[0] for name, one in definition.attributes.items()}


def _target(definition: Any) -> Any:
    return definition.final_target if definition.is_alias else definition

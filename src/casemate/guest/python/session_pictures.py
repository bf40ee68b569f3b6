"""Figures of matplotlib are shown without being asked for: those still open when a step ends, as in a notebook."""

import sys

from _casemate.bundles import complain  # type: ignore[import-not-found]
from _casemate.session_own import own as __builtins__  # type: ignore[import-not-found,no-redef]
from IPython.display import display
from traitlets import Bool, CUnicode, Dict, Set
from traitlets.config.configurable import Configurable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["InlineBackend", "__builtins__", "close_all", "register", "show_open_figures"]

_KINDS = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
}
_shown: "list[Any]" = []  # the figures that this step has shown already


class InlineBackend(Configurable):  # type: ignore[misc]
    """What ``%config InlineBackend.…`` sets, as where matplotlib_inline is installed."""

    figure_formats = Set({"png"}, help="png, retina, jpeg, svg, pdf").tag(config=True)
    figure_format = CUnicode(help="one format").tag(config=True)
    print_figure_kwargs = Dict({"bbox_inches": "tight"}, help="options of savefig").tag(config=True)
    rc = Dict(help="not used").tag(config=True)
    close_figures = Bool(True, help="close what a step has shown").tag(config=True)

    def __init__(self, shell: "Any") -> None:
        super().__init__()
        self.observe(lambda change: self.set_trait("figure_formats", {change["new"]}), "figure_format")
        self.observe(lambda _: register(shell, self), ["figure_formats", "print_figure_kwargs"])


def register(shell: "Any", wishes: InlineBackend) -> None:
    """Teach ``shell`` to show a figure in the formats that are wished for. matplotlib is not imported for it."""
    formatters = shell.display_formatter.formatters
    for media_type in set(_KINDS.values()):
        try:
            formatters[media_type].pop("matplotlib.figure.Figure")
        except KeyError:
            pass
    for kind in wishes.figure_formats:
        plain = "png" if kind in ("retina", "png2x") else kind
        if plain in _KINDS:
            formatters[_KINDS[plain]].for_type_by_name(
                "matplotlib.figure", "Figure", _saver(plain, 2 if plain != kind else 1, wishes.print_figure_kwargs)
            )


def _saver(kind: str, scale: int, options: "dict[str, Any]") -> "Any":
    def save(figure: "Any") -> "bytes | str | None":
        if not any(figure is other for other in _shown):
            _shown.append(figure)
        if not _has_content(figure):
            return None
        from io import BytesIO

        buffer = BytesIO()
        figure.savefig(buffer, format=kind, **{"dpi": figure.dpi * scale, **options})
        data = buffer.getvalue()
        return data.decode() if kind == "svg" else data

    return save


def show_open_figures() -> None:
    """Show those that the step has not shown itself, and close all."""
    figures = _open_figures()
    try:
        for figure in figures:
            if not any(figure is other for other in _shown) and _has_content(figure):
                display(figure)
    finally:
        if figures:
            close_all()
        _shown.clear()


def close_all() -> None:
    """Close every open figure, however broken it is."""
    for manager in _managers().get_all_fig_managers():
        try:
            _managers().destroy(manager)
        except Exception as error:
            complain(manager, "destroy", error)


def _open_figures() -> "list[Any]":
    managers = _managers()
    return [] if managers is None else [manager.canvas.figure for manager in managers.get_all_fig_managers()]


def _managers() -> "Any":
    return getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None)


def _has_content(figure: "Any") -> bool:
    return len(figure.get_children()) > 1  # the first is its background

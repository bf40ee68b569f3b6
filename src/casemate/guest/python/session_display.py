"""Sends IPython's displays, results and clear requests, and matplotlib's figures, as frames.

Figures that are still open when a step ends are shown automatically, as in a notebook.
"""

import sys

from _casemate.displays import clean, complain  # type: ignore[import-not-found]
from _casemate.session_frames import FRAME_LIMIT, encode, pipes  # type: ignore[import-not-found]
from _casemate.session_interrupts import own as __builtins__  # type: ignore[import-not-found,no-redef]
from _casemate.session_names import cut  # type: ignore[import-not-found]
from _casemate.session_steps import OUT, steps  # type: ignore[import-not-found]
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.display import display
from traitlets import Bool, Dict, Enum, Set
from traitlets.config.configurable import SingletonConfigurable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["InlineBackend", "Publisher", "ResultHook", "__builtins__", "show_open_figures"]

_MOST_METADATA = 2**14  # characters
_BUNDLE_LIMIT = FRAME_LIMIT - 2**17  # leaves room for the rest of the frame
_PLAIN = (int, float, bool, str, complex, type(None))
_KINDS = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
}
_FORMATS = (*_KINDS, "retina", "png2x")
_shown: "list[Any]" = []  # the figures that this step has shown


class Publisher(DisplayPublisher):  # type: ignore[misc]
    """Receives what ``display()`` shows."""

    def publish(self, data: "Any", metadata: "Any" = None, *_source: object, **options: "Any") -> None:
        """Send the bundle. A child process, which has no pipe, prints its text."""
        self._validate_data(data, metadata)
        transient = options.get("transient") or {}
        name = transient.get("display_id")
        display_id = None if name is None else cut(str(name), 200)
        _send("display", data, metadata, f',"id":{encode(display_id)},"update":{encode(bool(options.get("update")))}')

    def clear_output(self, wait: bool = False) -> None:
        """Remove what was shown so far: at once, or with ``wait`` when the next display comes."""
        steps.current().send_fields("clear", wait=bool(wait))


class ResultHook(DisplayHook):  # type: ignore[misc]
    """Shows the value of a step's last expression, and keeps it in ``_`` and ``Out`` as IPython does."""

    is_at_work = False  # whether a value is being formatted
    failure: "BaseException | None" = None  # the error of its ``__repr__``

    def quiet(self) -> bool:
        """Whether the code ends with a semicolon."""
        try:
            code = self.shell.history_manager.input_hist_parsed[-1]
        except IndexError:
            return False
        return ";" in code and bool(self.semicolon_at_end_of_expression(code))

    def compute_format_data(self, result: object) -> "Any":
        """Return the bundle of a value, and its metadata. Raises the error of its ``__repr__``."""
        self.is_at_work, self.failure = True, None
        try:
            formats = self._formats_of(result)
            if self.failure is not None:
                raise self.failure
            return formats
        finally:
            self.is_at_work, self.failure = False, None

    def _formats_of(self, result: object) -> "Any":
        """Format a value. A plain one has only text, unless the user registered another format for its type."""
        formatter = self.shell.display_formatter
        if type(result) in _PLAIN and not any(
            type(result) in each.type_printers for name, each in formatter.formatters.items() if name != "text/plain"
        ):
            return {"text/plain": formatter.formatters["text/plain"](result)}, {}
        return super().compute_format_data(result)

    def update_user_ns(self, result: object) -> None:
        """Keep the result, even if the code deleted ``_oh``."""
        self.shell.user_ns.setdefault("_oh", self.shell.history_manager.output_hist)
        super().update_user_ns(result)

    def start_displayhook(self) -> None:
        """Nothing to prepare."""
        self._is_active = True

    def write_output_prompt(self) -> None:
        """Write no prompt."""

    def write_format_data(self, format_dict: "Any", md_dict: "Any" = None) -> None:
        """Send the result."""
        _send("result", format_dict, md_dict, "")

    def log_output(self, format_dict: "Any") -> None:
        """Do nothing; ``Out`` already keeps results."""

    def finish_displayhook(self) -> None:
        """Nothing is left to do."""
        self._is_active = False

    def cull_cache(self) -> None:
        """Forget the oldest results silently."""
        results = self.shell.user_ns.get("_oh", {})
        for number in sorted(results)[: max(len(results) // 5, 2)]:
            for place in (self.shell.user_ns, self.shell.user_ns_hidden):
                place.pop(f"_{number}", None)
            results.pop(number, None)


def _send(kind: str, data: "Any", metadata: "Any", rest: str) -> None:
    bundle = clean(data)
    if metadata:
        rest += _encode_metadata(metadata)
    if "image/png" in bundle:
        bundle.pop("image/jpeg", None)
    step = steps.current()
    if not pipes.are_mine():
        text = bundle.get("text/plain", "")
        step.write_text(OUT, f"{text}\n")
    elif bundle:
        step.send_frame(kind, f'"bundle":{_encode_bundle(bundle)}{rest}')


def _encode_metadata(metadata: "Any") -> str:
    """Encode the display metadata if JSON can hold it and it is short."""
    try:
        text = encode(metadata)
    except (TypeError, ValueError, RecursionError):
        return ""
    return f',"metadata":{text}' if len(text) < _MOST_METADATA else ""


def _encode_bundle(bundle: "dict[str, object]") -> str:
    """Encode the bundle, without parts that JSON cannot hold, and without the largest ones if it is too large."""
    parts = {}
    for media_type, data in bundle.items():
        try:
            parts[media_type] = f"{encode(media_type)}:{encode(data)}"
        except (TypeError, ValueError, RecursionError) as error:
            complain(data, media_type, error)
    sizes = {media_type: len(part.encode("utf-8", "replace")) + 1 for media_type, part in parts.items()}
    while sum(sizes.values()) > _BUNDLE_LIMIT:
        largest = max(sizes, key=lambda media_type: sizes[media_type])
        complain(bundle[largest], largest, ValueError(f"more than {FRAME_LIMIT} bytes"))
        del sizes[largest], parts[largest]
    return "{" + ",".join(parts.values()) + "}"


class InlineBackend(SingletonConfigurable):  # type: ignore[misc]
    """The settings of ``%config InlineBackend.…``, as in matplotlib_inline."""

    figure_formats = Set(Enum(_FORMATS), {"png"}, help="png, retina, jpeg, svg, pdf").tag(config=True)
    figure_format = Enum(_FORMATS, None, allow_none=True, help="one format").tag(config=True)
    print_figure_kwargs = Dict({"bbox_inches": "tight"}, help="options of savefig").tag(config=True)
    rc = Dict(help="matplotlib.rcParams").tag(config=True)
    close_figures = Bool(True, help="close what a step has shown").tag(config=True)

    def __init__(self, shell: "Any") -> None:
        super().__init__()
        self._formatters = shell.display_formatter.formatters
        self.observe(
            lambda change: change["new"] and self.set_trait("figure_formats", {change["new"]}), "figure_format"
        )
        self.observe(lambda _: self._register(), ["figure_formats", "print_figure_kwargs"])
        self.observe(lambda change: __import__("matplotlib").rcParams.update(change["new"]), "rc")
        self._register()

    def _register(self) -> None:
        """Make IPython show figures in the chosen formats. Does not import matplotlib."""
        for media_type in set(_KINDS.values()):
            self._formatters[media_type].pop("matplotlib.figure.Figure", None)
        for kind in self.figure_formats:
            plain = kind if kind in _KINDS else "png"
            self._formatters[_KINDS[plain]].for_type_by_name(
                "matplotlib.figure", "Figure", _saver(plain, 1 if plain == kind else 2, self.print_figure_kwargs)
            )


def _saver(kind: str, scale: int, options: "dict[str, Any]") -> "Any":
    def save(figure: "Any") -> "Any":
        if not any(figure is other for other in _shown):
            _shown.append(figure)
        if not _has_content(figure):
            return None
        from io import BytesIO

        buffer = BytesIO()
        figure.savefig(buffer, format=kind, **{"dpi": figure.dpi * scale, **options})
        figure.stale = False  # with bbox_inches="tight", savefig leaves it stale
        data = buffer.getvalue()
        if scale > 1:  # for high-resolution screens: give the size to show, from the PNG's header
            width, height = (int.from_bytes(data[at : at + 4], "big") // scale for at in (16, 20))
            return data, {"width": width, "height": height}
        return data.decode() if kind == "svg" else data

    return save


def show_open_figures() -> None:
    """Show the figures that the step has not shown, and close all. Without ``close_figures``, only changed ones."""
    gcf: "Any" = getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None)
    managers = [] if gcf is None else gcf.get_all_fig_managers()
    closes = InlineBackend.instance().close_figures
    try:
        for figure in [manager.canvas.figure for manager in managers]:
            is_new = (closes or figure.stale) and not any(figure is other for other in _shown)
            if is_new and _has_content(figure):
                display(figure)
    finally:
        for manager in managers if closes else ():
            try:
                gcf.destroy(manager)
            except Exception as error:
                complain(manager, "destroy", error)
        _shown.clear()


def _has_content(figure: "Any") -> bool:
    return len(figure.get_children()) > 1  # the first is its background

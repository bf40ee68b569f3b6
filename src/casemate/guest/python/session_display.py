"""What IPython shows, as frames: displays, results, clearing."""

from _casemate.bundles import clean, complain  # type: ignore[import-not-found]
from _casemate.session_frames import FRAME_LIMIT, encode, pipes  # type: ignore[import-not-found]
from _casemate.session_names import cut  # type: ignore[import-not-found]
from _casemate.session_own import own as __builtins__  # type: ignore[import-not-found,no-redef]
from _casemate.session_steps import OUT, steps  # type: ignore[import-not-found]
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Publisher", "ResultHook", "__builtins__"]

_ROOM = FRAME_LIMIT - 2**10  # for a bundle, so that the rest of its frame has room too
_PLAIN = (int, float, bool, str, complex, type(None))


class Publisher(DisplayPublisher):  # type: ignore[misc]
    """Where ``display()`` ends."""

    def publish(self, data: "Any", metadata: "Any" = None, *_source: object, **options: "Any") -> None:
        """Send the bundle. A child process, which has no pipe, prints its text."""
        self._validate_data(data, metadata)
        transient = options.get("transient") or {}
        name = transient.get("display_id")
        told = None if name is None else cut(str(name), 200)
        _send(
            "display",
            data,
            f',"id":{encode(told)},"update":{encode(bool(options.get("update")))}',
        )

    def clear_output(self, wait: bool = False) -> None:
        """What was shown so far is to go, at once or (``wait``) when the next comes."""
        steps.current().fields("clear", wait=bool(wait))


class ResultHook(DisplayHook):  # type: ignore[misc]
    """What the value of a step's last expression goes through. It is kept in ``_`` and ``Out`` as in IPython."""

    def quiet(self) -> bool:
        """Whether the code ends with a semicolon."""
        try:
            code = self.shell.history_manager.input_hist_parsed[-1]
        except IndexError:
            return False
        return ";" in code and bool(self.semicolon_at_end_of_expression(code))

    def compute_format_data(self, result: object) -> "Any":
        """Its bundle and metadata. A plain value has its text only, unless somebody has taught IPython otherwise."""
        formatter = self.shell.display_formatter
        if type(result) in _PLAIN and not any(
            type(result) in each.type_printers for name, each in formatter.formatters.items() if name != "text/plain"
        ):
            return {"text/plain": formatter.formatters["text/plain"](result)}, {}
        return super().compute_format_data(result)

    def update_user_ns(self, result: object) -> None:
        """Keep it, also after code that has deleted every name it saw."""
        self.shell.user_ns.setdefault("_oh", self.shell.history_manager.output_hist)
        super().update_user_ns(result)

    def start_displayhook(self) -> None:
        """Nothing to prepare."""
        self._is_active = True

    def write_output_prompt(self) -> None:
        """There is none."""

    def write_format_data(self, format_dict: "Any", md_dict: "Any" = None) -> None:  # noqa: ARG002 - IPython's
        """Send the result."""
        _send("result", format_dict, "")

    def log_output(self, format_dict: "Any") -> None:
        """Results are kept once, in ``Out``."""

    def finish_displayhook(self) -> None:
        """Nothing is left to do."""
        self._is_active = False

    def cull_cache(self) -> None:
        """Forget the oldest results, without a word."""
        kept = self.shell.user_ns.get("_oh", {})
        for number in sorted(kept)[: max(len(kept) // 5, 2)]:
            for place in (self.shell.user_ns, self.shell.user_ns_hidden):
                place.pop(f"_{number}", None)
            kept.pop(number, None)


def _send(kind: str, data: "Any", rest: str) -> None:
    bundle = clean(data)
    if "image/png" in bundle:
        bundle.pop("image/jpeg", None)
    step = steps.current()
    if not pipes.are_mine():
        text = bundle.get("text/plain", "")
        step.text(OUT, f"{text}\n")
    elif bundle:
        step.frame(kind, f'"bundle":{_fitting(bundle)}{rest}')


def _fitting(bundle: "dict[str, object]") -> str:
    """The bundle's JSON, without what JSON cannot hold and without the largest parts where it is too large."""
    parts = {}
    for media_type, data in bundle.items():
        try:
            parts[media_type] = f"{encode(media_type)}:{encode(data)}"
        except (TypeError, ValueError, RecursionError) as error:
            complain(data, media_type, error)
    sizes = {media_type: len(part.encode("utf-8", "replace")) + 1 for media_type, part in parts.items()}
    while sum(sizes.values()) > _ROOM:
        largest = max(sizes, key=lambda media_type: sizes[media_type])
        complain(bundle[largest], largest, ValueError(f"more than {FRAME_LIMIT} bytes"))
        del sizes[largest], parts[largest]
    return "{" + ",".join(parts.values()) + "}"

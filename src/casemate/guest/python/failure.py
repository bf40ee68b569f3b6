"""An uncaught exception, as the host hears of it."""

from _casemate.channel import encode, send  # type: ignore[import-not-found]

_LONGEST = 2**20


def report(error: BaseException) -> None:
    """Send one error frame. Never raises for a broken exception: the program has already failed in its own way."""
    number = getattr(error, "errno", None) if isinstance(error, OSError) else None
    frame = {
        "type": "error",
        "name": type(error).__name__,
        "value": _beginning(_message(error)),
        "traceback": _end(_traceback(error)),
        "errno": number if isinstance(number, int) else None,
    }
    send(encode(frame))
    if isinstance(error, KeyboardInterrupt):
        _stay_interrupted()


def _beginning(text: str) -> str:
    """``text``, or as much of it as is sent. Where it is cut an ellipsis says so: the host hides half secrets there."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _end(text: str) -> str:
    """The same with the end, which says most in a traceback."""
    return text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"


def _stay_interrupted() -> None:
    """Python remembers that Ctrl-C ended the program, to die by SIGINT, until the next text is evaluated. The imports
    above did that (named tuples are made so); this makes it remember again."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    try:
        eval("interrupt()", {"interrupt": interrupt})
    except KeyboardInterrupt:
        return


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


def _traceback(error: BaseException) -> str:
    try:
        import traceback

        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        return f"{type(error).__name__}: {_message(error)}\n"

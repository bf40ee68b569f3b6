"""Pictures on terminals that can show them, and how casemate detects that.

Sources: Kitty's "Terminal graphics protocol", iTerm2's "Inline Images Protocol", sixels of the VT340 (DEC STD 070).
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import io
import os
import re
import select
import struct
import termios
import time
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from casemate.model.pictures import Picture

Protocol = Literal["kitty", "iterm2", "sixel", ""]

_ANSWERS_WITHIN = 3.0  # seconds, even over a slow line; most terminals answer at once
_PIECE = 4096  # characters of a picture in one of Kitty's sequences
_USUAL_WIDTH = 800  # pixels, if the terminal does not report its width
_ASK = b"\x1b_Gi=1,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[c"  # Kitty's query for pictures, then device attributes
_ANSWER = re.compile(rb"\x1b\[\?([0-9;]*)c")
END = b"\x1b\\"  # ends any sequence that a terminal is in


@cache
def protocol_of(screen: int) -> Protocol:
    """The terminal's protocol for pictures; empty if it has none or is not a terminal. Bounded in time."""
    if not os.isatty(screen) or os.environ.get("TERM", "dumb") in ("dumb", "linux"):
        return ""
    return protocol_in(os.environ) or _ask_terminal()


def protocol_in(environ: Mapping[str, str]) -> Protocol:
    """The protocol by variables. In tmux and screen, variables describe the outer terminal and do not count."""
    name, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if "TMUX" in environ or "STY" in environ or name.startswith(("tmux", "screen")):
        return ""
    if name in ("xterm-kitty", "xterm-ghostty") or "KITTY_WINDOW_ID" in environ or program == "ghostty":
        return "kitty"
    is_known = program in ("iTerm.app", "WezTerm") or environ.get("LC_TERMINAL") == "iTerm2"
    return "iterm2" if is_known else ""


def _ask_terminal() -> Protocol:
    """The protocol by the terminal's answer, if this process is in its foreground and no input is waiting."""
    with contextlib.suppress(OSError, termios.error):
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            is_free = os.tcgetpgrp(terminal) == os.getpgrp() and not select.select([terminal], [], [], 0)[0]
            return _read_protocol(_exchange(terminal)) if is_free else ""
        finally:
            os.close(terminal)
    return ""


def _read_protocol(answer: bytes) -> Protocol:
    if b"\x1b_Gi=1;OK" in answer:
        return "kitty"
    attributes = _ANSWER.search(answer)
    has_sixels = attributes is not None and b"4" in attributes[1].split(b";")
    return "sixel" if has_sixels and find_spec("PIL") else ""


def _exchange(terminal: int) -> bytes:
    before, answer, ends = termios.tcgetattr(terminal), b"", time.monotonic() + _ANSWERS_WITHIN
    quiet = [*before]
    quiet[3] = before[3] & ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(terminal, termios.TCSADRAIN, quiet)
    try:
        os.write(terminal, _ASK)
        while not _ANSWER.search(answer) and len(answer) < _PIECE:
            if not select.select([terminal], [], [], max(ends - time.monotonic(), 0))[0]:
                break
            answer += os.read(terminal, _PIECE)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
    return answer


def draw(picture: Picture, protocol: Protocol, screen: int) -> bytes:
    """The sequences that show ``picture``, at most as wide as the terminal; empty if the protocol cannot show it."""
    columns, pixels = _width_of(screen)
    is_wide = picture.width > (pixels or _USUAL_WIDTH)
    encoded = base64.b64encode(picture.data)
    if protocol == "kitty" and picture.media_type == "image/png":
        return b"".join(_kitty_pieces(encoded, f",c={columns}" if is_wide and columns else "")) + b"\n"
    if protocol == "iterm2":
        width = "100%" if is_wide else "auto"
        return f"\x1b]1337;File=inline=1;size={len(picture.data)};width={width}:".encode() + encoded + b"\x07\n"
    if protocol == "sixel":
        with contextlib.suppress(ImportError, OSError, ValueError, SyntaxError):  # Pillow's errors for bad pictures
            return _sixels(picture, pixels or _USUAL_WIDTH) + b"\n"
    return b""


def _width_of(screen: int) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        _, columns, pixels, _ = struct.unpack("HHHH", fcntl.ioctl(screen, termios.TIOCGWINSZ, bytes(8)))
        return columns, pixels
    return 0, 0


def _kitty_pieces(encoded: bytes, keys: str) -> Iterator[bytes]:
    """The picture in sequences. ``q=2``: the terminal must not answer, since an answer counts as typed."""
    control = f"a=T,f=100,q=2{keys},"
    for place in range(0, len(encoded), _PIECE):
        more = int(place + _PIECE < len(encoded))
        yield f"\x1b_G{control}m={more};".encode() + encoded[place : place + _PIECE] + END
        control = ""


def _sixels(picture: Picture, most_width: int) -> bytes:
    """Bands of six rows: for each color of a band, which pixels of its columns have it."""
    from PIL import Image

    image: Any = Image.open(io.BytesIO(picture.data), formats=("PNG", "JPEG")).convert("RGBA")
    image.thumbnail((most_width, most_width * 4))
    white = Image.new("RGBA", image.size, "white")
    drawn = Image.alpha_composite(white, image).convert("RGB").quantize(256)
    width, height, pixels = *drawn.size, drawn.tobytes()
    palette = drawn.getpalette() or []
    out = [f'\x1bPq"1;1;{width};{height}'.encode()]
    for colour in range(len(palette) // 3):
        red, green, blue = (round(one / 2.55) for one in palette[3 * colour : 3 * colour + 3])
        out.append(f"#{colour};2;{red};{green};{blue}".encode())
    for top in range(0, height, 6):
        rows = [pixels[width * row : width * (row + 1)] for row in range(top, min(top + 6, height))]
        out.extend(_band(rows, colour) + b"$" for colour in sorted(set(b"".join(rows))))
        out.append(b"-")
    return b"".join(out) + END


_AS_SIXELS = bytes((bits + 63) % 256 for bits in range(256))


def _band(rows: list[bytes], colour: int) -> bytes:
    bits = 0
    for number, row in enumerate(rows):
        of_colour = row.translate(bytes(colour) + bytes((1 << number,)) + bytes(255 - colour))
        bits |= int.from_bytes(of_colour)
    drawn = bits.to_bytes(len(rows[0])).translate(_AS_SIXELS)
    runs = re.sub(rb"(.)\1{3,}", lambda run: b"!%d%c" % (len(run[0]), run[0][0]), drawn, flags=re.DOTALL)
    return b"#%d%s" % (colour, runs)

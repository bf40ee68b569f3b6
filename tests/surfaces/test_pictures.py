"""Pictures on a terminal that can show them, and nothing of them anywhere else."""

from __future__ import annotations

import base64
import os
import pty
import re
from collections.abc import Callable, Iterator

import pytest
from tests.surfaces.conftest import At, Cli
from tests.unit.model.test_showing import JPEG, chunk, png

from casemate.model.pictures import Picture, picture_of
from casemate.surfaces.cli.pictures import draw, protocol_in

PNG = base64.b64encode(png(2, 2, chunk(b"tEXt", b"left out"))).decode()
SHOWS = f"""
class Plot:
    def _repr_png_(self): return {PNG!r}
    def __repr__(self): return "<Plot>"
print("before", end="")
display(Plot())
print("after")
"""
KITTY = b"\x1b_Ga=T,f=100,q=2,m=0;" + base64.b64encode(png()) + b"\x1b\\\n"
ASKED = b"\x1b_Gi=1,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[c"
Make = Callable[..., Cli]


def test_a_picture_is_drawn_where_the_terminal_can(make_cli: Make) -> None:
    cli = make_cli(TERM="xterm-kitty")
    shown = cli.on_terminal("run", cli.program(SHOWS)).stdout
    assert shown.startswith(b"before\n" + KITTY + b"after\n")


def test_nothing_is_drawn_in_a_pipe_or_as_json(make_cli: Make) -> None:
    cli = make_cli(TERM="xterm-kitty")
    assert cli("run", cli.program(SHOWS)).stdout == b"beforeafter\n"
    assert b"\x1b_G" not in cli.on_terminal("run", "--format", "json", cli.program(SHOWS)).stdout


def test_a_terminal_without_pictures_is_asked_once(at_terminal: At, cli: Cli) -> None:
    program = cli.program(SHOWS + SHOWS)
    terminal = at_terminal("run", program)
    terminal.until(ASKED)
    terminal.type(b"\x1b[?62;22c")
    done = terminal.done()
    assert b"beforeafter\nbeforeafter\n" in done.stdout.replace(ASKED, b"")  # after a bar, on a busy machine
    assert done.stdout.count(ASKED) == 1


@pytest.mark.parametrize(("answer", "begins"), [
    (b"\x1b_Gi=1;OK\x1b\\\x1b[?62c", KITTY), (b"\x1b[?62;4;22c", b'\x1bPq"1;1;2;2#0;2;'),
], ids=["kitty", "sixel"])  # fmt: skip
def test_a_terminal_says_itself_what_it_can(at_terminal: At, cli: Cli, answer: bytes, begins: bytes) -> None:
    terminal = at_terminal("run", cli.program(SHOWS))
    terminal.until(ASKED)
    terminal.type(answer)
    terminal.until(b"after")
    assert begins.rstrip(b"\n") in terminal.shown
    assert terminal.done().code == 0


def test_a_terminal_that_says_nothing_holds_nobody_up(at_terminal: At, cli: Cli) -> None:
    terminal = at_terminal("run", cli.program(SHOWS))
    terminal.until(ASKED)
    assert b"beforeafter\n" in terminal.done().stdout.replace(ASKED, b"")  # after a bar, on a busy machine


def test_what_somebody_has_typed_is_left_to_whoever_reads_it_next(at_terminal: At, cli: Cli) -> None:
    terminal = at_terminal("run", cli.program(SHOWS))
    terminal.type(b"ls\n")
    done = terminal.done()
    assert ASKED not in done.stdout


def test_no_program_draws_by_itself(make_cli: Make) -> None:
    cli = make_cli(TERM="xterm-kitty")
    shown = cli.on_terminal("run", cli.program("print('\\x1b_Ga=T,f=100;AAAA\\x1b\\\\')")).stdout
    assert b"\x1b_G" not in shown


@pytest.mark.parametrize(("variables", "protocol"), [
    ({"TERM": "xterm-kitty"}, "kitty"), ({"TERM": "xterm-ghostty"}, "kitty"),
    ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
    ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm2"),
    ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm2"),
    ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm2"),
    ({"TERM": "tmux-256color", "TMUX": "/tmp/x", "KITTY_WINDOW_ID": "1"}, ""),
    ({"TERM": "screen", "LC_TERMINAL": "iTerm2"}, ""), ({"TERM": "xterm-256color"}, ""),
])  # fmt: skip
def test_variables_say_what_a_terminal_can(variables: dict[str, str], protocol: str) -> None:
    assert protocol_in(variables) == protocol


@pytest.fixture
def screen() -> Iterator[int]:
    """A terminal that does not say how wide it is."""
    ours, theirs = pty.openpty()
    yield theirs
    os.close(ours)
    os.close(theirs)


def test_a_large_picture_of_kitty_comes_in_pieces(screen: int) -> None:
    data = png() + os.urandom(9000)
    drawn = draw(Picture("image/png", data, 2, 2), "kitty", screen)
    pieces = re.findall(rb"\x1b_G(?:a=T,f=100,q=2,)?m=([01]);([A-Za-z0-9+/=]{1,4096})\x1b\\", drawn)
    assert [more for more, _ in pieces] == [b"1", b"1", b"0"]
    assert base64.b64decode(b"".join(piece for _, piece in pieces)) == data


def test_iterm2_gets_the_file(screen: int) -> None:
    drawn = draw(Picture("image/jpeg", JPEG, 5, 3), "iterm2", screen)
    assert (
        drawn == f"\x1b]1337;File=inline=1;size={len(JPEG)};width=auto:{base64.b64encode(JPEG).decode()}\x07\n".encode()
    )


def test_a_jpeg_is_nothing_for_kitty_and_a_broken_one_nothing_for_sixels(screen: int) -> None:
    assert draw(Picture("image/jpeg", JPEG, 5, 3), "kitty", screen) == b""
    assert draw(Picture("image/jpeg", JPEG, 5, 3), "sixel", screen) == b""


def test_sixels_are_the_pixels_of_the_picture(screen: int) -> None:
    picture = picture_of({"image/png": base64.b64encode(png()).decode()})
    assert picture is not None
    drawn = draw(picture, "sixel", screen)
    assert pixels_of(drawn) == [[(100, 0, 0), (0, 0, 100)]] * 2


def pixels_of(sixels: bytes) -> list[list[tuple[int, ...]]]:
    """What a terminal draws of them."""
    head = re.match(rb'\x1bPq"1;1;(\d+);(\d+)', sixels)
    assert head is not None
    width, height = int(head[1]), int(head[2])
    colours = {int(one[0]): tuple(map(int, one[1:])) for one in re.findall(rb"#(\d+);2;(\d+);(\d+);(\d+)", sixels)}
    body = re.sub(rb"#\d+;2;\d+;\d+;\d+", b"", sixels[head.end() :].partition(b"\x1b\\")[0])
    pixels: list[list[tuple[int, ...]]] = [[()] * width for _ in range(height)]
    for band, text in enumerate(body.split(b"-")):
        for colour, drawn in re.findall(rb"#(\d+)([^#$]*)\$", text):
            plain = re.sub(rb"!(\d+)(.)", lambda run: run[2] * int(run[1]), drawn)
            for column, bits in enumerate(plain):
                for row in range(6):
                    if (bits - 63) >> row & 1:
                        pixels[6 * band + row][column] = colours[int(colour)]
    return pixels

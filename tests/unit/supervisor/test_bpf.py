"""The assembler, judged by running what it makes."""

from __future__ import annotations

import struct

import pytest
from tests.unit.supervisor.bpf_machine import run

from casemate.supervisor.seccomp import ANY_BIT, AT_LEAST, EQUAL, INSTRUCTION_BYTES, Assembler

LARGEST = 0xFFFF_FFFF


def word(value: int) -> bytes:
    return struct.pack("=I", value)


def value_of(assembler: Assembler, accumulator: int) -> int:
    return run(assembler.assemble(), word(accumulator))[0]


@pytest.mark.parametrize(
    ("test", "operand", "accumulator", "outcome"),
    [
        (EQUAL, 7, 7, True),
        (EQUAL, 7, 8, False),
        (AT_LEAST, 7, 7, True),
        (AT_LEAST, 7, 6, False),
        (AT_LEAST, 7, LARGEST, True),
        (ANY_BIT, 0b110, 0b010, True),
        (ANY_BIT, 0b110, 0b001, False),
    ],
)
def test_a_jump_goes_where_its_test_says(test: int, operand: int, accumulator: int, outcome: bool) -> None:
    assembler = Assembler()
    assembler.load(0)
    assembler.jump(test, operand, "yes", "no")
    for label in ("no", "yes"):
        assembler.label(label)
        assembler.answer(label == "yes")

    assert value_of(assembler, accumulator) == outcome


def test_no_label_means_the_next_instruction() -> None:
    assembler = Assembler()
    assembler.load(0)
    assembler.jump(EQUAL, 1, None, "other")
    assembler.answer(10)
    assembler.label("other")
    assembler.answer(20)

    assert (value_of(assembler, 1), value_of(assembler, 2)) == (10, 20)


def test_bits_that_are_not_kept_are_cleared_before_the_comparison() -> None:
    assembler = Assembler()
    assembler.load(0)
    assembler.keep_bits(0xF0)
    assembler.jump(EQUAL, 0x30, "same", None)
    assembler.answer(0)
    assembler.label("same")
    assembler.answer(1)

    assert (value_of(assembler, 0xFF3F), value_of(assembler, 0x40)) == (1, 0)


@pytest.mark.parametrize("filling", [0, 1, 253, 254, 255, 256, 257, 1000, 70_000])
@pytest.mark.parametrize("far", ["yes", "no", "both"])
def test_a_jump_arrives_however_far_it_goes(filling: int, far: str) -> None:
    assembler = Assembler()
    assembler.load(0)
    assembler.jump(EQUAL, 1, None if far == "no" else "one", None if far == "yes" else "other")
    assembler.answer(30)
    for _ in range(filling):
        assembler.answer(99)
    assembler.label("one")
    assembler.answer(10)
    assembler.label("other")
    assembler.answer(20)

    assert value_of(assembler, 1) == (30 if far == "no" else 10)
    assert value_of(assembler, 2) == (30 if far == "yes" else 20)


def test_a_jump_within_reach_needs_no_help() -> None:
    def length(filling: int) -> int:
        assembler = Assembler()
        assembler.jump(EQUAL, 1, "end", None)
        for _ in range(filling):
            assembler.answer(0)
        assembler.label("end")
        assembler.answer(1)
        return len(assembler.assemble()) // INSTRUCTION_BYTES

    assert length(255) == 255 + 2
    assert length(256) == 256 + 2 + 1


def test_a_jump_that_help_pushes_out_of_reach_gets_help_too() -> None:
    assembler = Assembler()
    assembler.load(0)
    assembler.jump(EQUAL, 1, "near", None)  # within reach but for the help of the next
    assembler.jump(EQUAL, 2, "far", None)
    for _ in range(254):
        assembler.answer(99)
    assembler.label("near")
    assembler.answer(1)
    assembler.label("far")
    assembler.answer(2)

    assert [value_of(assembler, accumulator) for accumulator in (1, 2, 3)] == [1, 2, 99]


@pytest.mark.parametrize(
    "cases",
    [
        {},
        {0: "a"},
        {5: "a"},
        {LARGEST: "a"},
        {0: "a", LARGEST: "b"},
        dict.fromkeys(range(10, 20), "a"),
        {number: "ab"[number % 2] for number in range(100)},
        {number: "abc"[number % 3] for number in range(0, 300, 7)},
        {1: "a", 2: "b", 3: "a", 9: "otherwise"},
        {number: "a" if number % 5 else "b" for number in range(1500)},
    ],
    ids=lambda cases: f"{len(cases)} cases",
)
def test_a_search_finds_every_case_and_nothing_else(cases: dict[int, str]) -> None:
    assembler = Assembler()
    assembler.load(0)
    assembler.search(cases, "otherwise")
    for label in ("a", "b", "c", "otherwise"):
        assembler.label(label)
        assembler.answer(ord(label[0]))
    program = assembler.assemble()

    for number in (*range(1600), *(1 << bit for bit in range(11, 32)), LARGEST - 1, LARGEST):
        assert run(program, word(number))[0] == ord(cases.get(number, "otherwise")[0]), number


def test_a_search_among_a_thousand_takes_few_instructions() -> None:
    assembler = Assembler()
    assembler.load(0)
    assembler.search({number: f"l{number}" for number in range(1000)}, "otherwise")
    for label in (*(f"l{number}" for number in range(1000)), "otherwise"):
        assembler.label(label)
        assembler.answer(1)
    program = assembler.assemble()

    # the load, ten halvings that may each need a helping jump, the answer
    assert max(run(program, word(number))[1] for number in range(1001)) <= 1 + 2 * 11 + 1


def test_numbers_that_follow_each_other_cost_one_comparison_at_each_end() -> None:
    assembler = Assembler()
    assembler.search(dict.fromkeys(range(100, 400), "in"), "out")
    assembler.label("in")
    assembler.answer(1)
    assembler.label("out")
    assembler.answer(0)

    assert len(assembler.assemble()) // INSTRUCTION_BYTES == 2 + 2


def test_a_label_that_is_nowhere_is_an_error() -> None:
    assembler = Assembler()
    assembler.jump(EQUAL, 1, "nowhere", None)
    assembler.answer(0)

    with pytest.raises(ValueError, match="'nowhere' is not set"):
        assembler.assemble()


def test_a_label_can_be_set_once_only() -> None:
    assembler = Assembler()
    assembler.label("here")

    with pytest.raises(ValueError, match="'here' is set twice"):
        assembler.label("here")


def test_a_jump_backwards_is_an_error() -> None:
    assembler = Assembler()
    assembler.label("again")
    assembler.load(0)
    assembler.go("again")

    with pytest.raises(ValueError, match="backwards"):
        assembler.assemble()

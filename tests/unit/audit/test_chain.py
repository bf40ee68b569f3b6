"""The hash chain: what was written verifies, and whatever is changed afterwards is found and named."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from casemate.audit.chain import EMPTY, Head, Row, Verdict, canonical, hash_of, verify_after


def chain(details: list[str]) -> list[Row]:
    rows: list[Row] = []
    head = EMPTY
    for number, detail in enumerate(details, 1):
        row = Row(number, 10 * number, number, "intent", f"run-{number}", "default", detail, head.last, "")
        row = row._replace(hash=hash_of(row))
        rows.append(row)
        head = Head(number, row.hash)
    return rows


def verify(rows: list[Row], head: Head) -> Verdict:
    return verify_after(rows, EMPTY, head)


def head_of(rows: list[Row]) -> Head:
    return Head(len(rows), rows[-1].hash) if rows else EMPTY


DETAILS = st.lists(st.text(max_size=20), min_size=1, max_size=12)
FIELDS = {
    "sequence": 99,
    "wall": -1,
    "monotonic": -1,
    "kind": "other",
    "execution_id": "other",
    "namespace": "other",
    "detail": '{"action":"approve"}',
    "previous": "f" * 64,
    "hash": "e" * 64,
}


@given(DETAILS)
def test_rows_as_they_were_written_verify(details: list[str]) -> None:
    rows = chain(details)
    assert verify(rows, head_of(rows)).ok
    assert verify([], EMPTY).ok


@given(DETAILS, st.data())
def test_a_changed_field_is_found_in_the_row_it_was_changed_in(details: list[str], data: st.DataObject) -> None:
    """AU-04."""
    rows = chain(details)
    head = head_of(rows)
    index = data.draw(st.integers(0, len(rows) - 1))
    field = data.draw(st.sampled_from(sorted(FIELDS)))
    changed = rows[index]._replace(**{field: FIELDS[field]})  # type: ignore[arg-type]
    verdict = verify([*rows[:index], changed, *rows[index + 1 :]], head)
    assert verdict.first_bad == (1 if changed == rows[index] else index + 1) or changed == rows[index]
    assert verdict.ok == (changed == rows[index])


@given(DETAILS, st.data())
def test_a_removed_row_is_found_where_it_is_missing_also_at_the_end(details: list[str], data: st.DataObject) -> None:
    """AU-04."""
    rows = chain(details)
    index = data.draw(st.integers(0, len(rows) - 1))
    verdict = verify(rows[:index] + rows[index + 1 :], head_of(rows))
    assert verdict.first_bad == index + 1
    assert "missing" in verdict.reason


@given(st.lists(st.text(max_size=5), min_size=2, max_size=8), st.data())
def test_rows_in_another_order_do_not_verify(details: list[str], data: st.DataObject) -> None:
    """AU-04."""
    rows = chain(details)
    order = data.draw(st.permutations(range(len(rows))))
    verdict = verify([rows[index] for index in order], head_of(rows))
    moved = [index for index, place in enumerate(order) if index != place]
    assert verdict.first_bad == (moved[0] + 1 if moved else None)


def test_a_row_put_in_and_hashed_anew_breaks_the_one_after_it() -> None:
    """AU-04."""
    rows = chain(["a", "b", "c"])
    forged = rows[1]._replace(detail="forged")
    forged = forged._replace(hash=hash_of(forged))
    assert verify([rows[0], forged, rows[2]], head_of(rows)).first_bad == 3


def test_a_whole_new_chain_does_not_match_a_head_noted_elsewhere() -> None:
    """AU-04."""
    assert verify(chain(["a", "forged"]), head_of(chain(["a", "b"]))).first_bad == 2


def test_rows_beyond_the_head_are_found() -> None:
    rows = chain(["a", "b", "c"])
    assert verify(rows, head_of(rows[:2])).first_bad == 3


@given(st.text(), st.text())
def test_no_two_rows_have_the_same_bytes(one: str, other: str) -> None:
    """AU-02: fields cannot be moved into each other by quotes, commas or separators."""
    left = Row(1, 2, 3, "intent", one, other, "{}", "", "")
    right = Row(1, 2, 3, "intent", one + other, "", "{}", "", "")
    assert (canonical(left) == canonical(right)) == (left == right)
    assert canonical(left).isascii()
    assert b"\n" not in canonical(left)


def test_the_bytes_of_a_row_are_those_of_its_fields_as_a_list_of_json() -> None:
    row = Row(1, 2, 3, "intent", 'quo"te', "é\ud800", '{"a":"\\n"}', "0" * 64, "")
    expected = json.dumps(["casemate-record-1", *row[:-1]], separators=(",", ":"))
    assert canonical(row) == expected.encode()
    assert canonical(row._replace(wall=2.0)) != canonical(row)  # type: ignore[arg-type]

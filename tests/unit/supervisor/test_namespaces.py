"""Which ids a supervisor has, by the map of its user namespace."""

from __future__ import annotations

import pytest

from casemate.supervisor.namespaces import Identities, map_of_root


@pytest.mark.parametrize(
    ("uid_map", "expected"),
    [
        ("         0          0 4294967295\n", (0, 4294967295)),
        ("0 100000 65536\n", (100000, 65536)),
        ("0 1002 1\n1 165536 65536\n", (1002, 65537)),  # rootless Podman's root
        ("1 165536 65536\n0 1002 1\n", (1002, 65537)),
        ("0 1000 1\n", (1000, 1)),
        ("0 1000 1\n5 200000 10\n", (1000, 1)),
        ("1000 1000 1\n", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_the_ids_of_a_namespace_are_those_of_all_lines_that_follow_each_other(
    uid_map: str, expected: tuple[int, int]
) -> None:
    assert map_of_root(uid_map) == expected


def test_no_two_cells_are_the_same_while_there_are_ids_and_an_id_that_nobody_has_is_given_again() -> None:
    identities = Identities(range(7, 10), mapped=True)
    one, other, beyond = identities.take(), identities.take(), identities.take()
    assert [one.uid, other.uid, beyond.uid, identities.first.uid] == [8, 9, 7, 7]
    one.namespaces[(0, 0)] = 5
    del one, beyond
    again = identities.take()
    assert (again.uid, again.namespaces) == (8, {(0, 0): 5})

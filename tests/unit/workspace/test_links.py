"""Which links may be written: those that cannot lead out, whatever other links lie beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casemate.workspace.permitted import link_problem


@pytest.mark.parametrize(
    ("target", "depth"),
    [(b"x", 0), (b"x/y", 0), (b".", 0), (b"..", 1), (b"../x", 1), (b"../../x/./y", 2), (b"./../x", 1), (b"x//y/", 0)],
)
def test_a_link_that_stays_inside_is_written(target: bytes, depth: int) -> None:
    assert link_problem(target, depth) is None


@pytest.mark.parametrize(
    ("target", "depth"),
    [(b"/", 9), (b"/etc", 0), (b"..", 0), (b"../..", 1), (b"x/../y", 5), (b"x/..", 5), (b"a\nb", 0), (b"\xff", 0)],
)
def test_a_link_that_could_lead_out_is_refused(target: bytes, depth: int) -> None:
    assert link_problem(target, depth)


PARTS = st.lists(st.sampled_from(["..", ".", "a", "b", "c"]), min_size=1, max_size=5).map("/".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "d/e/b"]), PARTS))
def test_no_set_of_written_links_leads_out_of_the_folder(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str]
) -> None:
    """AR-01: judged by the kernel."""
    outside = tmp_path_factory.mktemp("outside")
    root = outside / "x" / "root"
    (root / "d" / "e").mkdir(parents=True)
    for name, target in links.items():
        if link_problem(target.encode(), name.count("/")) is None:
            (root / name).symlink_to(target)
    for name in links:
        path = root / name
        if path.is_symlink():
            try:
                real = Path(os.path.realpath(path, strict=True))
            except OSError:
                continue
            assert real.is_relative_to(root)

"""Starts the Node interpreter of a session as a cell does, but for the walls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.unit.guest import session_driver
from tests.unit.guest.stage import BASE_ENV, GUEST


class NodeSession(session_driver.Session):
    """One interpreter of Node, which is ready."""

    def __init__(self, folder: Path, node: str, *, flags: Sequence[str] = ()) -> None:
        program = folder / "program" / "main.js"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"require({json.dumps(str(GUEST / 'node_session.cjs'))});\n")
        super().__init__(folder, [node, *flags, str(program)], {**BASE_ENV, "HOME": str(folder)})
        try:
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def results(self, *codes: str) -> list[str | None]:
        """The last value of each of these steps, as text."""
        return [self.run(code).result for code in codes]

    def value(self, op: str, **fields: Any) -> Any:
        """The value of the reply to a request that is no step."""
        reply = self.ask(op, **fields)
        assert "error" not in reply, reply
        return reply["value"]

    def until_it_rests(self) -> None:
        """Until a signal has had all its effect: none waits, and no thread has run between two looks."""
        looks: list[list[tuple[str, ...]]] = []

        def rests() -> bool:
            looks.append(
                [self._look(task) for task in sorted((Path("/proc") / str(self.process.pid) / "task").iterdir())]
            )
            asleep = all(state == "S" and not int(own, 16) + int(shared, 16) for state, own, shared, *_ in looks[-1])
            return asleep and looks[-2:-1] == looks[-1:]

        self.wait_for(rests)

    @staticmethod
    def _look(task: Path) -> tuple[str, ...]:
        lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        names = ("State", "SigPnd", "ShdPnd", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
        return tuple(lines[name].split()[0] for name in names)

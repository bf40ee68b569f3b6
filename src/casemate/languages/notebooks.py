"""The names of each language in notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NotebookLanguage:
    title: str  # for people
    info: Mapping[str, Any]  # Jupyter's ``language_info``, without the version


NOTEBOOKS: Mapping[str, NotebookLanguage] = {
    "python": NotebookLanguage("Python", {
        "name": "python", "mimetype": "text/x-python", "file_extension": ".py", "pygments_lexer": "ipython3",
        "codemirror_mode": {"name": "ipython", "version": 3}, "nbconvert_exporter": "python",
    }),
    "node": NotebookLanguage("JavaScript", {
        "name": "javascript", "mimetype": "text/javascript", "file_extension": ".js", "pygments_lexer": "javascript",
        "codemirror_mode": "javascript", "nbconvert_exporter": "script",
    }),
    "shell": NotebookLanguage("Bash", {
        "name": "bash", "mimetype": "text/x-sh", "file_extension": ".sh", "pygments_lexer": "bash",
        "codemirror_mode": "shell", "nbconvert_exporter": "script",
    }),
}  # fmt: skip

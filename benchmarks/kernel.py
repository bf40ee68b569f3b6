"""An ipykernel of our own, where it and jupyter_client are installed, as something to compare with; or another kernel.

It is talked to through sockets in a folder: nothing listens on a network. What it writes goes into that folder too.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import tempfile
from typing import Any

_MAX_WAIT = 60.0  # seconds for an answer
NEEDED = ("ipykernel", "jupyter_client")


def missing() -> str:
    """What is not installed of what is needed; empty when all is there."""
    return ", ".join(name for name in NEEDED if importlib.util.find_spec(name) is None)


class Kernel:
    """A kernel that has answered once, to ``first``. ``hears``: what its cells write and give can be asked for."""

    def __init__(self, first: str = "pass", *, hears: bool = False, argv: tuple[str, ...] = ()) -> None:
        """``argv``: of another kernel than ipykernel, without the connection file."""
        self._folder = tempfile.mkdtemp(prefix="casemate-kernel-")
        places = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
        env = os.environ | {place: f"{self._folder}/{place.lower()}" for place in places}
        manager = importlib.import_module("jupyter_client.manager").KernelManager
        self._manager: Any = manager(
            transport="ipc", ip=f"{self._folder}/socket", connection_file=f"{self._folder}/connection.json"
        )
        if argv:
            spec = importlib.import_module("jupyter_client.kernelspec").KernelSpec
            self._manager._kernel_spec = spec(argv=[*argv, "-f", "{connection_file}"], language="python")
        self._client: Any = None
        try:
            self._manager.start_kernel(env=env)
            self._client = self._manager.blocking_client()
            self._client.start_channels(iopub=hears, stdin=False, hb=hears, control=False)
            if hears:
                self._client.wait_for_ready(timeout=_MAX_WAIT)
            self.execute(first)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return int(self._manager.provisioner.pid)

    def execute(self, code: str) -> None:
        """Execute ``code`` and wait for its reply. Raises ``RuntimeError`` when it fails, or without an answer."""
        self._answered(self._client.execute(code))

    def text_of(self, code: str) -> str:
        """Execute ``code`` and give all its text, as clients do: the reply, and what is published until it is idle."""
        asked = self._client.execute(code)
        self._answered(asked)
        texts: list[str] = []
        while True:
            message = self._client.get_iopub_msg(timeout=_MAX_WAIT)
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != asked:
                continue
            if kind == "stream":
                texts.append(content["text"])
            elif kind == "execute_result":
                texts.append(content["data"]["text/plain"])
            elif kind == "status" and content["execution_state"] == "idle":
                return "".join(texts).strip()

    def _answered(self, asked: str) -> None:
        while True:
            reply = self._client.get_shell_msg(timeout=_MAX_WAIT)
            if reply["parent_header"].get("msg_id") == asked:
                break
        if reply["content"]["status"] != "ok":
            raise RuntimeError(f"the kernel says {reply['content']}")

    def close(self) -> None:
        """End it, and remove what it wrote."""
        with contextlib.ExitStack() as ends:
            ends.callback(shutil.rmtree, self._folder, ignore_errors=True)
            ends.callback(self._manager.shutdown_kernel, now=True)
            if self._client is not None:
                ends.callback(self._client.stop_channels)

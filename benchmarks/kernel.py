"""An ipykernel to compare with, if it and jupyter_client are installed; or another kernel.

Its sockets are in a folder, so nothing listens on a network. The files that it writes go into that folder, too.
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
    """The required packages that are missing. Empty if all are installed."""
    return ", ".join(name for name in NEEDED if importlib.util.find_spec(name) is None)


class Kernel:
    """A kernel that has executed ``first``. With ``hears``, the output of its cells can be read."""

    def __init__(self, first: str = "pass", *, hears: bool = False, argv: tuple[str, ...] = ()) -> None:
        """``argv``: the command of a kernel other than ipykernel, without the connection file."""
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
        """Execute ``code`` and wait for its reply. Raises ``RuntimeError`` if it fails or no reply comes."""
        self._answered(self._client.execute(code))

    def text_of(self, code: str) -> str:
        """Execute ``code`` as clients do: wait for the reply and the idle state. Returns all of its text."""
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
        """End the kernel and remove its files."""
        with contextlib.ExitStack() as ends:
            ends.callback(shutil.rmtree, self._folder, ignore_errors=True)
            ends.callback(self._manager.shutdown_kernel, now=True)
            if self._client is not None:
                ends.callback(self._client.stop_channels)

"""Outlive the run: daemons that hold the pipes, ignore signals, are stopped, left their session; with MARK in argv."""

from __future__ import annotations

import os
import signal

from tests.escapes.payloads.attempts import attempt, finish


def daemon(*, stopped: bool = False, sessions: int = 1) -> None:
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    for _ in range(sessions):
        os.setsid()
        if os.fork():
            os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if stopped:
        os.execv("/bin/sh", [os.environ["MARK"], "-c", "kill -STOP $$; sleep 60"])
    os.execv("/bin/sleep", [os.environ["MARK"], "60"])


attempt("daemon", daemon)
attempt("daemon of a daemon", lambda: daemon(sessions=3))
attempt("stopped daemon", lambda: daemon(stopped=True))
finish()

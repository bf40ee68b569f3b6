"""A server of the tests' own, with the standard library only: raw lines, so that it can do what no SDK would.

own_server.py MODE: see MODES; the tools are the functions in TOOLS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_lock = threading.Lock()
_extra: list[dict[str, Any]] = []
_answers: dict[Any, Any] = {}
_shouted: list[int] = []  # bytes
_answered = threading.Condition()


def say(message: Any) -> None:
    with _lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def text(words: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(words)}]}


def mark(words: str) -> None:
    """What the test reads afterwards."""
    with open(os.environ["MARKS"], "a", encoding="utf-8") as file:
        file.write(words + "\n")


def wait(arguments: dict[str, Any], _meta: dict[str, Any]) -> dict[str, Any]:
    mark(f"wait {os.getpid()}")
    time.sleep(arguments["seconds"])
    return text("waited")


def progress(arguments: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    for step in range(1, 4):
        params = {
            "progressToken": meta.get("progressToken"),
            "progress": step,
            "total": 3,
            "message": f"step\x1b {step}",
        }
        say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    return text("done")


def daemonise(_arguments: dict[str, Any], _meta: dict[str, Any]) -> dict[str, Any]:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
    null = subprocess.DEVNULL
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
    )
    assert child.stdout
    return text(child.stdout.readline().decode().strip())


def ask(arguments: dict[str, Any], _meta: dict[str, Any]) -> dict[str, Any]:
    params = {"message": "your name?", **arguments["params"]}
    say({"jsonrpc": "2.0", "id": "question", "method": arguments["method"], "params": params})
    with _answered:
        _answered.wait_for(lambda: "question" in _answers)
    return text(json.dumps(_answers.pop("question")))


def interrogate(arguments: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    said = [json.loads(ask(arguments, meta)["content"][0]["text"])["action"] for _ in range(arguments["times"])]
    return text(json.dumps(said))


def shout(arguments: dict[str, Any], _meta: dict[str, Any]) -> dict[str, Any]:
    def without_end() -> None:
        while True:
            _shouted.append(os.write(2, b"x" * 65536))

    if not _shouted:
        threading.Thread(target=without_end, daemon=True).start()
    return text(sum(_shouted))


def change(arguments: dict[str, Any], _meta: dict[str, Any]) -> dict[str, Any]:
    _extra[:] = arguments["tools"]
    say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    return text("changed")


def die(arguments: dict[str, Any], _meta: dict[str, Any]) -> dict[str, Any]:
    mark(f"die {os.getpid()}")
    print(arguments.get("words", "I die"), file=sys.stderr, flush=True)
    os._exit(arguments.get("code", 3))


def give(arguments: dict[str, Any], _meta: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = arguments["result"]
    return result


def refuse(arguments: dict[str, Any], _meta: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(arguments["words"])


TOOLS: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "echo": lambda arguments, _: text(json.dumps(arguments)),
    "pid": lambda _, __: text(os.getpid()),
    "environment": lambda _, __: text(json.dumps(dict(os.environ))),
    "big": lambda arguments, _: text("x" * arguments["size"]),
    "interrogate": interrogate,
    "shout": shout,
    "wait": wait,
    "progress": progress,
    "daemonise": daemonise,
    "ask": ask,
    "change": change,
    "die": die,
    "give": give,
    "refuse": refuse,
}


def listed(mode: str, params: dict[str, Any]) -> dict[str, Any]:
    """The answer to tools/list."""
    tools: list[Any] = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
    if mode == "malformed":
        tools[2:2] = [
            None, "tool", {}, {"name": ""}, {"name": 7}, {"name": "line\nbreak"},
            {"name": "list-schema", "inputSchema": []}, {"name": "text-out", "inputSchema": {}, "outputSchema": "x"},
            {"name": "deep", "inputSchema": _nested(100)}, {"name": "none", "inputSchema": None},
            {"name": "echo", "inputSchema": {"type": "object"}, "description": "a second of this name"},
            {"name": "required", "inputSchema": {"required": "a"}, "outputSchema": {"type": "array"}},
        ]  # fmt: skip
    if mode == "regex":
        out = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
        tools = [{"name": "give", "inputSchema": {"type": "object"}, "outputSchema": out}]
    if mode == "cyclic":
        return {"tools": tools if "cursor" not in params else [], "nextCursor": "again"}
    if mode == "endless":
        number = int(params.get("cursor", "0"))
        return {"tools": [{"name": f"t{number}", "inputSchema": {"type": "object"}}], "nextCursor": str(number + 1)}
    if mode == "empty cursor":
        place = params.get("cursor")
        pages = {None: (tools[:5], ""), "": (tools[5:10], "x"), "x": (tools[10:], None)}
        page = {"tools": pages[place][0]}
        return page if pages[place][1] is None else {**page, "nextCursor": pages[place][1]}
    if mode == "pages":
        number = int(params.get("cursor", "0"))
        page = {"tools": tools[number : number + 5]}
        return page | ({"nextCursor": str(number + 5)} if number + 5 < len(tools) else {})
    return {"tools": tools + _extra}


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def answer(mode: str, request: dict[str, Any]) -> None:
    method, params = request["method"], request.get("params", {})
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        if method == "initialize":
            capabilities = {"tools": {"listChanged": True}, "resources": {}}
            version = "2024-11-05" if mode == "old" else params["protocolVersion"]
            reply["result"] = {
                "protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": "own", "version": "1"}
            }  # fmt: skip
        elif method == "tools/list":
            reply["result"] = listed(mode, params)
        elif method == "tools/call":
            reply["result"] = TOOLS[params["name"]](params.get("arguments", {}), params.get("_meta", {}))
        elif method == "resources/read":
            reply["result"] = {"contents": [{"uri": params["uri"], "text": "what it holds"}]}
        else:
            reply["error"] = {"code": -32601, "message": "Method not found"}
    except ValueError as error:
        reply["error"] = {"code": -32000, "message": str(error)}
    say(reply)


def main(mode: str) -> None:
    if "MARKS" in os.environ:
        mark(f"start {os.getpid()}")
    misbehave(mode)
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message:
            with _answered:
                _answers[message["id"]] = message.get("result", message.get("error"))
                _answered.notify_all()
        elif "id" in message:
            threading.Thread(target=answer, args=(mode, message), daemon=True).start()
        elif message["method"] == "notifications/cancelled" and "MARKS" in os.environ:
            mark("cancelled")
        elif message["method"] == "notifications/initialized" and mode == "chatter":
            while True:
                say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "la"}})
    if mode == "stays":
        time.sleep(300)


def misbehave(mode: str) -> None:
    """Before anything was asked."""
    if mode == "dies":
        print("no database\x1b[2J at home", file=sys.stderr)
        sys.exit(7)
    if mode == "silent":
        time.sleep(300)
    if mode == "rubbish":
        print("Welcome to my server!\n\n{not json}\n[1, 2]\nnull", flush=True)
    if mode == "torrent":
        while True:
            print("rubbish " * 1000)
    if mode == "blanks":
        while True:
            print("\n" * (1 << 16))
    if mode == "line":
        while True:
            sys.stdout.write("x" * (1 << 20))


if __name__ == "__main__":
    main(sys.argv[1])

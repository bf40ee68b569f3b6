"""Searches the web in a cell: asks one engine after another until one finds something. Input and output are JSON."""

import json
import os
import signal
import sys
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

TYPE_CHECKING = False  # importing typing takes time
if TYPE_CHECKING:
    from typing import Any

_WITHIN = 10  # seconds for each engine
_MOST_ANSWER = 4 << 20  # bytes


def main() -> None:
    """Read the order, and print the hits and the failures."""
    order = json.loads(sys.stdin.buffer.read())
    answer: "dict[str, Any]" = {"hits": [], "failed": {}, "empty": []}
    for name in order["engines"]:
        try:
            hits = ask_searxng(order) if name == "searxng" else ask_engine(name, order["query"])
        except Exception as error:  # a result page may break a parser in any way
            answer["failed"][name] = f"{error}"[:300] or type(error).__name__
            continue
        if hits:
            answer["hits"] = hits[: order["limit"]]
            break
        answer["empty"].append(name)
    sys.stdout.buffer.write(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def ask_searxng(order: "dict[str, Any]") -> "list[dict[str, str]]":
    """Search with a SearXNG server through its JSON API."""

    def stop(*_: object) -> None:
        raise OSError(f"has not answered within {_WITHIN} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(_WITHIN)
    address = f"{order['searxng'].rstrip('/')}/search?{urlencode({'q': order['query'], 'format': 'json'})}"
    try:
        with urlopen(Request(address, headers={"User-Agent": "casemate/1.0"})) as response:
            found = json.loads(response.read(_MOST_ANSWER))["results"]
            return [_hit(one["title"], one["url"], one.get("content"), one.get("engine")) for one in found]
    except HTTPError as error:
        hint = ": its settings must name json among search.formats" if error.code == 403 else ""
        raise OSError(f"answered {error.code}{hint}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise OSError("did not answer with JSON search results") from None
    finally:
        signal.alarm(0)


def ask_engine(name: str, query: str) -> "list[dict[str, str]]":
    """Search with one engine of ddgs."""
    from ddgs.engines import ENGINES

    # If the egress proxy terminates TLS, that file has its CA.
    engine = ENGINES["text"][name](timeout=_WITHIN, verify=os.environ.get("SSL_CERT_FILE") or True)
    ask, answered = engine.http_client.request, []

    def ask_and_note(*arguments: "Any", **options: "Any") -> "Any":
        response = ask(*arguments, **options)
        answered.append(response.status_code)
        return response

    engine.http_client.request = ask_and_note
    found = engine.search(query)
    if found is None or any(status != 200 for status in answered):
        raise OSError(f"answered {answered[-1] if answered else 'nothing'}")
    return [_hit(one.title, one.href, one.body, name) for one in found]


def _hit(title: "Any", url: "Any", snippet: "Any", engine: "Any") -> "dict[str, str]":
    return {"title": str(title or ""), "url": str(url or ""), "snippet": str(snippet or ""), "engine": str(engine)}

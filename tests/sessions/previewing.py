"""Clients of previews, as programs that find no host under ``.localhost``: they connect to the loopback and say the
name."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx
from websockets.asyncio.client import ClientConnection, connect

from casemate.model.preview import Preview

# Waits until a server listens at `port`; for the end of a step that has started one.
LISTENS = """
import socket, time
def wait_for(port, host='127.0.0.1'):
    for _ in range(2000):
        try:
            return socket.create_connection((host, port), 1).close()
        except OSError:
            time.sleep(0.01)
    raise SystemExit('nobody listens')
"""
# A static site, as people serve one.
SITE = (
    LISTENS
    + """
import subprocess, sys
open('index.html', 'w').write('<h1>hello</h1>')
subprocess.Popen([sys.executable, '-m', 'http.server', '8000'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
wait_for(8000)
"""
)
# What a developer writes with FastAPI or Starlette, served by uvicorn.
APPLICATION = (
    LISTENS
    + '''
open('app.py', 'w').write("""
import asyncio, hashlib, json
from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute

async def hello(request):
    return JSONResponse({'path': request.url.path, 'query': request.url.query, 'headers': dict(request.headers)})
async def page(request):
    return FileResponse('page.html', headers=json.load(open('headers.json')))
async def take(request):
    body = await request.body()
    return JSONResponse({'size': len(body), 'sha256': hashlib.sha256(body).hexdigest()})
async def give(request):
    async def parts():
        for number in range(int(request.query_params['parts'])):
            yield b'%08d' % number * 1000
    return StreamingResponse(parts())
async def login(request):
    answer = RedirectResponse('/', 303)
    answer.set_cookie('user', 'ann')
    answer.set_cookie('casemate-preview', 'stolen')
    return answer
async def changes(request):
    async def events():
        yield b'data: begun\\\\n\\\\n'
        await asyncio.Event().wait()
    return StreamingResponse(events(), media_type='text/event-stream')
async def echo(websocket):
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text.upper())
routes = [
    Route('/page', page), Route('/take', take, methods=['POST', 'PUT']), Route('/give', give),
    Route('/login', login, methods=['POST']), Route('/changes', changes), WebSocketRoute('/live', echo),
    Route('/{path:path}', hello),
]
app = Starlette(routes=routes)
""")
import subprocess, sys
subprocess.Popen([sys.executable, '-m', 'uvicorn', '--host', '127.0.0.1', '--port', '8000', 'app:app'],
                 stdout=open('server.log', 'w'), stderr=subprocess.STDOUT)
wait_for(8000)
'''
)


def name_of(preview: Preview) -> str:
    """Its host name, with the port."""
    return urlsplit(preview.url).netloc


def loopback(preview: Preview) -> str:
    """Where its host is had on this machine."""
    return f"http://127.0.0.1:{urlsplit(preview.url).port}"


def client(preview: Preview, *, host: str = "", cookie: str = "", **headers: str) -> httpx.AsyncClient:
    """A client that has not been let in yet."""
    told = {"host": host or name_of(preview), **({"cookie": cookie} if cookie else {}), **headers}
    return httpx.AsyncClient(base_url=loopback(preview), headers=told, timeout=60)


async def cookie_of(preview: Preview) -> str:
    """What a browser has once it has followed the link."""
    async with client(preview) as stranger:
        answer = await stranger.get(f"/?{urlsplit(preview.url).query}")
    assert answer.status_code == 303, answer.text
    return answer.headers["set-cookie"].partition(";")[0]


async def visitor(preview: Preview) -> httpx.AsyncClient:
    """A client that has come by the link."""
    return client(preview, cookie=await cookie_of(preview))


async def live(preview: Preview, path: str = "/live", **headers: str) -> ClientConnection:
    """A WebSocket."""
    parts = urlsplit(preview.url)
    return await connect(
        f"ws://{parts.netloc}{path}", host="127.0.0.1", port=parts.port, additional_headers=headers, open_timeout=60
    )

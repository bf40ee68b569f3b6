"""Programs that must do under the hook exactly what they do in plain Python."""

from __future__ import annotations

from tests.warm.programs import ENDS, WORKS

PROGRAMS: dict[str, str | bytes] = {
    "empty": "",
    "prints": "print('hello')",
    "names itself": (
        "import sys, os\n"
        "print(__name__, __file__, sys.argv, __spec__, __package__, __doc__, type(__loader__).__name__)\n"
        "print(sorted(set(globals())), os.getcwd(), __builtins__ is __import__('builtins'))\n"
    ),
    "sees a stack of its own": WORKS["its stack"],
    "sees no hook": (
        "import os, sys\n"
        "print('PYTHONPATH' in os.environ, sys.excepthook is sys.__excepthook__)\n"
        "print([p for p in sys.path if 'casemate' in p], [m for m in sys.modules if m.startswith('casemate')])\n"
    ),
    "echoes no last expression": "1 + 1",
    "reads stdin": "import sys\nprint(input(), sys.stdin.read())",
    "exits by number": "import sys; sys.exit(7)",
    "exits by large number": "import sys; sys.exit(256 + 3)",
    "exits by text": "import sys; sys.exit('sorry')",
    "exits by None": "import sys; sys.exit(None)",
    "exits by object": "import sys; sys.exit([1, 2])",
    "exits by name": "exit(3)",
    "exits at once": "import os; print('lost?', flush=True); os._exit(9)",
    "raises SystemExit without code": "raise SystemExit",
    "fails in atexit": "import atexit\natexit.register(lambda: 1 / 0)\n",
    "prints in atexit": "import atexit\natexit.register(print, 'bye')\nprint('hi')\n",
    "is interrupted": "raise KeyboardInterrupt",
    "interrupts itself": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nfor _ in iter(int, 1): pass",
    "dies by a signal": "import os, signal\nprint('x', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)",
    "ends with a broken pipe": "import os, sys\nr, w = os.pipe()\nos.close(r)\nos.write(w, b'x')",
    "raises": "def f(x):\n    return 1 / x\n\nf(0)\n",
    "raises without a last newline": "raise ValueError('no newline')",
    "raises at a column": "a = {'x': None}\nprint(a['x']['y']['z'])\n",
    "raises a chain": "try:\n    {}['k']\nexcept KeyError as e:\n    raise RuntimeError('outer') from e\n",
    "raises while handling": "try:\n    {}['k']\nexcept KeyError:\n    int('x')\n",
    "raises from None": "try:\n    {}['k']\nexcept KeyError:\n    raise RuntimeError('alone') from None\n",
    "raises its own class": "class Odd(Exception):\n    def __str__(self): return 'é ü \\U0001f600'\nraise Odd()\n",
    "raises with a broken str": "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd()\n",
    "raises without end": "def f(n):\n    return f(n + 1)\nf(0)\n",
    "raises lines": "raise ValueError('one\\ntwo\\n')",
    "raises OSError": "open('/nope/nothing')",
    "raises in a thread": ENDS["fails in a thread"],
    "raises in asyncio": WORKS["asyncio that fails"],
    "raises in a destructor": "class D:\n    def __del__(self): raise ValueError('del')\nd = D()\ndel d\nprint('on')\n",
    "raises in a helper": "import helper\nhelper.boom(3)\n",
    "raises on import": "import broken\n",
    "misses a module": "import surely_not_there\n",
    "hooks exceptions itself": (
        "import sys\nsys.excepthook = lambda t, v, tb: print('mine', t.__name__, v, file=sys.stderr)\n1 / 0\n"
    ),
    "has a syntax error": ENDS["has a syntax error"],
    "has a bad indent": ENDS["has a wrong indent"],
    "has an unfinished string": "print('abc\n",
    "has a null byte": b"print(1)\nx = '\x00'\n",
    "has tabs and spaces": "if 1:\n        x = 1\n\ty = 2\n",
    "has a coding cookie": "# -*- coding: latin-1 -*-\nprint('\xe9')\nraise ValueError('\xe9')\n".encode("latin-1"),
    "has a wrong coding cookie": "# -*- coding: no-such -*-\nprint(1)\n",
    "is not UTF-8": b"print('\xff')\n",
    "has CRLF": b"x = 1\r\nprint(x)\r\nraise ValueError('crlf')\r\n",
    "has a BOM": "\ufeffprint('bom')\nraise ValueError\n",
    "has a form feed": "print(1)\n\f\nraise ValueError\n",
    "has a shebang": "#!/usr/bin/env python3\nraise ValueError(1)\n",
    "is unicode": "größe = '🐍 ≠ snake'\nprint(größe)\nraise ValueError(größe)\n",
    "has a future import": (
        "'''doc'''\nfrom __future__ import annotations\ndef f(x: Undefined): ...\nprint(__doc__, f.__annotations__)\n"
    ),
    "warns": WORKS["warnings"],
    "warns by syntax": WORKS["warnings of syntax"],
    "leaves a file open": "f = open('/dev/null')\ndel f\nprint(1)\n",
    "logs": (
        "import logging\n"
        "logging.warning('w')\n"
        "logging.basicConfig(format='%(filename)s %(lineno)d %(funcName)s')\n"
        "logging.error('e')\n"
    ),
    "imports a helper": "import helper\nprint(helper.__name__, helper.__file__, helper.double(4))\n",
    "finds its helper first": "import sys\nprint(sys.path[0])\n",
    "reads its source": WORKS["its source"],
    "pickles": WORKS["pickles of its own classes"],
    "runs dataclasses and typing": WORKS["dataclasses"],
    "runs doctests": WORKS["doctest"],
    "runs unittest": WORKS["unittest"],
    "parses arguments": WORKS["argparse"],
    "starts Python": (
        "import subprocess, sys\n"
        'code = \'import sys; print(sys.argv, hasattr(__builtins__, "display"), "guest" in str(sys.path))\'\n'
        "print(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True))\n"
    ),
    "forks": WORKS["fork and exit"],
    "fails in a fork": WORKS["fork and fail"],
    "runs a pool of threads": WORKS["a pool of threads"],
    "runs runpy": (
        "import runpy\nprint(runpy.run_path(__file__, run_name='x')['y'] if __name__ == '__main__' else 0)\ny = 5\n"
    ),
    "clears builtins": (
        "import builtins\n"
        "for n in ('open', 'repr', 'print', 'isinstance', 'getattr'):\n"
        "    delattr(builtins, n)\n"
        "raise ValueError(1)\n"
    ),
    "changes folder": "import os\nos.chdir('/')\nimport helper\nhelper.boom(1)\n",
}
for method in ("fork", "spawn", "forkserver"):
    PROGRAMS[f"runs processes by {method}"] = (
        "import multiprocessing, helper\n"
        "class Thing:\n    def __init__(self, n): self.n = n\n"
        "def work(thing):\n    return helper.double(thing.n), __name__\n"
        "if __name__ == '__main__':\n"
        f"    with multiprocessing.get_context('{method}').Pool(2) as pool:\n"
        "        print([r[0] for r in pool.map(work, [Thing(1), Thing(2)])])\n"
    )
PROGRAMS["raises a group"] = (
    "import sys\n"
    "if sys.version_info < (3, 11): raise SystemExit\n"
    "e = ValueError(1)\ne.add_note('a note')\n"
    "raise ExceptionGroup('many', [e, ExceptionGroup('inner', [TypeError('t')])])\n"
)
HELPERS = {
    "helper": "def double(n):\n    return 2 * n\n\ndef boom(n):\n    raise LookupError(f'boom {n}')\n",
    "broken": "def f(:\n",
}

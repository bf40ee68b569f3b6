"""Programs that must do under the hook exactly what they do in plain Python."""

from __future__ import annotations

PROGRAMS: dict[str, str | bytes] = {
    "empty": "",
    "prints": "print('hello')",
    "names itself": (
        "import sys, os\n"
        "print(__name__, __file__, sys.argv, __spec__, __package__, __doc__, type(__loader__).__name__)\n"
        "print(sorted(set(globals())), os.getcwd(), __builtins__ is __import__('builtins'))\n"
    ),
    "sees a stack of its own": (
        "import inspect, sys, traceback\n"
        "print(len(inspect.stack()), sys._getframe().f_back)\n"
        "def f(): traceback.print_stack()\n"
        "f()\n"
    ),
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
    "raises in a thread": (
        "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='T')\nt.start(); t.join()\nprint('on')\n"
    ),
    "raises in asyncio": (
        "import asyncio\n"
        "async def main():\n"
        "    await asyncio.sleep(0)\n"
        "    raise ValueError('late')\n"
        "asyncio.run(main())\n"
    ),
    "raises in a destructor": "class D:\n    def __del__(self): raise ValueError('del')\nd = D()\ndel d\nprint('on')\n",
    "raises in a helper": "import helper\nhelper.boom(3)\n",
    "raises on import": "import broken\n",
    "misses a module": "import surely_not_there\n",
    "hooks exceptions itself": (
        "import sys\nsys.excepthook = lambda t, v, tb: print('mine', t.__name__, v, file=sys.stderr)\n1 / 0\n"
    ),
    "has a syntax error": "x = (1,\ny = 2\n",
    "has a bad indent": "def f():\nreturn 1\n",
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
    "warns": (
        "import warnings\n"
        "warnings.warn('careful')\n"
        "warnings.warn('deep', DeprecationWarning, stacklevel=2)\n"
        "import os\n"
    ),
    "warns by syntax": "x = 1\nif x is 'a': pass\n",
    "leaves a file open": "f = open('/dev/null')\ndel f\nprint(1)\n",
    "logs": (
        "import logging\n"
        "logging.warning('w')\n"
        "logging.basicConfig(format='%(filename)s %(lineno)d %(funcName)s')\n"
        "logging.error('e')\n"
    ),
    "imports a helper": "import helper\nprint(helper.__name__, helper.__file__, helper.double(4))\n",
    "finds its helper first": "import sys\nprint(sys.path[0])\n",
    "reads its source": (
        "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f), inspect.getsourcefile(f))\n"
    ),
    "pickles": (
        "import pickle\n"
        "class A:\n"
        "    def __eq__(self, o): return True\n"
        "print(pickle.loads(pickle.dumps(A())) == A(), A.__module__)\n"
    ),
    "runs dataclasses and typing": (
        "import dataclasses, typing\n"
        "@dataclasses.dataclass\n"
        "class A:\n"
        "    x: 'list[int]'\n"
        "print(typing.get_type_hints(A), A([1]))\n"
    ),
    "runs doctests": "'''\n>>> 1 + 1\n3\n'''\nimport doctest\nprint(doctest.testmod())\n",
    "runs unittest": (
        "import unittest\n"
        "class T(unittest.TestCase):\n"
        "    def test_x(self): self.assertEqual(1, 1)\n"
        "r = unittest.main(exit=False, argv=['x'], testRunner=unittest.TextTestRunner(open('/dev/null', 'w'))).result\n"
        "print(r.testsRun)\n"
    ),
    "parses arguments": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('n', type=int)\nprint(p.parse_args())\n"
    ),
    "starts Python": (
        "import subprocess, sys\n"
        'code = \'import sys; print(sys.argv, hasattr(__builtins__, "display"), "guest" in str(sys.path))\'\n'
        "print(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True))\n"
    ),
    "forks": (
        "import os\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    raise SystemExit(4)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    ),
    "fails in a fork": (
        "import os\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    raise ValueError('child')\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    ),
    "runs a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(2) as p: print(list(p.map(abs, [-1, -2])))\n"
    ),
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

"""Programs whose whole visible end must not tell how their cell was started."""

# ruff: noqa: E501

from __future__ import annotations

_SAYS = (
    "class Says:\n    def __init__(self, n): self.n = n\n    def __del__(self): print('del', self.n, Says is None)\n"
)

ENDS: dict[str, str] = {
    # exit codes
    "runs to its end": "print('end')",
    **{f"exits with {code}": f"import sys; print('x'); sys.exit({code})"
       for code in ("0", "1", "3", "255", "256", "-1", "1 << 40", "True", "None", "'sorry'", "[1]", "3.5", "''")},
    "exits by a subclass with a code of its own": (
        "class E(SystemExit):\n    def __init__(self): super().__init__(3); self.code = 5\nraise E"),
    "exits by a subclass whose code fails": (
        "class E(SystemExit):\n    @property\n    def code(self): raise ValueError('no code')\nraise E"),
    "exits in a function of atexit": "import atexit, sys\natexit.register(sys.exit, 7)",
    "exits in a thread": "import threading, sys\nt = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()",
    "raises": "def f(): return 1 / 0\nf()",
    "raises a chain": "try: {}['k']\nexcept KeyError as e: raise RuntimeError('outer') from e",
    "raises a group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "raises KeyboardInterrupt": "raise KeyboardInterrupt",
    "interrupts itself": "import os, signal\nprint('x', flush=True)\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
    "aborts": "import os\nprint('lost'); os.abort()",
    "ends at once": "import os\nprint('lost'); os._exit(9)",
    "ends at once and has flushed": "import os\nprint('kept', flush=True); os._exit(0)",
    "is ended by SIGTERM": "import os, signal\nprint('lost'); os.kill(os.getpid(), signal.SIGTERM)\nwhile True: pass",
    "is ended by SIGPIPE": "import os, signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
    "r, w = os.pipe(); os.close(r); os.write(w, b'x')",
    "runs out of stack": "def f(n): return f(n + 1)\nf(0)",
    "has a syntax error": "x = (1,\ny = 2\n",
    "has a wrong indent": "def f():\nreturn 1\n",
    # output and files
    "does not end its line": "import sys\nsys.stdout.write('no newline'); sys.stderr.write('here too')",
    "leaves a file open": "import sys\nf = open('output/left.txt', 'w'); f.write('x' * 100)",
    "leaves a file open elsewhere": "import sys\nsys.kept = open('output/left.txt', 'w'); sys.kept.write('x' * 100)",
    "leaves a file open in a ring": "f = [open('output/left.txt', 'w')]; f[0].write('x'); f.append(f); del f",
    "leaves a file open in a class": "class C: f = open('output/left.txt', 'w')\nC.f.write('x')\ndef g(): return C",
    "leaves bytes in a file": "import builtins\nbuiltins.f = open('output/left.bin', 'wb'); builtins.f.write(b'x' * 9)",
    "leaves a file to a function": "f = open('output/left.txt', 'w')\ndef g(): f.write('y')\ng()",
    "leaves files to a helper": "import own\nown.f = open('output/left.txt', 'w'); own.f.write('x')",
    "leaves a file to C": "import ctypes\nc = ctypes.CDLL(None); c.fopen.restype = ctypes.c_void_p\n"
    "c.fputs(b'left', ctypes.c_void_p(c.fopen(b'output/left.txt', b'w')))",
    "prints by C": "import ctypes\nctypes.CDLL(None).puts(b'by C')",
    "closes stdout": "import sys\nprint('x'); sys.stdout.close()",
    "closes stdout's descriptor": "import os\nprint('x', flush=True); os.close(1); print('y')",
    "closes stderr": "import sys\nsys.stderr.close(); print('x')",
    "loses stdout": "import sys\nprint('x'); sys.stdout = None",
    "deletes stdout": "import sys\nprint('x'); del sys.stdout",
    "replaces stdout": "import sys, io\nclass W(io.StringIO):\n    def flush(self): sys.__stdout__.write('flushed\\n')\n"
    "sys.stdout = W(); print('hidden')",
    "replaces stdout by one that fails": "import sys\nclass W:\n    def write(self, t): pass\n    closed = False\n"
    "    def flush(self): raise ValueError('cannot')\nsys.stdout = W()",
    "reopens stdout": "import os, sys\nsys.stdout = os.fdopen(1, 'w', 1 << 16); print('x' * 10)",
    "fills a full device": "import sys\nsys.stdout = open('/dev/full', 'w'); print('x')",
    # objects, modules
    "frees a global": _SAYS + "a = Says('global')\ndef f(): return a",
    "frees a ring": _SAYS + "b = [Says('ring')]; b.append(b); del b",
    "frees what a class holds": _SAYS + "class C: pass\nC.held = Says('class')\ndef f(self): return C\nC.f = f",
    "frees what a module holds": _SAYS + "import own\nown.held = Says('module')",
    "frees what sys holds": _SAYS + "import sys\nsys.held = Says('sys')",
    "frees what builtins hold": _SAYS + "import builtins\nbuiltins.held = Says('builtins')",
    "frees what a loaded module holds": _SAYS + "import json\njson.held = Says('json')",
    "frees names in order": _SAYS + "z = Says('z'); _a = Says('_a'); a = Says('a'); __d = Says('__d'); _b = Says('_b')",
    "frees what a default holds": _SAYS + "def f(x=Says('default')): return f",
    "frees what a thread left": _SAYS + "import threading\nl = threading.local(); l.x = Says('local')",
    "frees what a generator holds": (
        "def g():\n    try: yield 1\n    finally: print('finally')\nx = g(); next(x)\ndef f(): return x"),
    "frees after an exception": _SAYS + "a = Says('global')\n1 / 0",
    "frees after an exit": _SAYS + "a = Says('global')\nimport sys; sys.exit(2)",
    "frees before an end at once": _SAYS + "a = Says('global')\nimport os; os._exit(2)",
    "fails in a destructor": "class D:\n    def __del__(self): raise ValueError('del')\nd = D()",
    "imports in a destructor": "class D:\n    def __del__(self):\n        import json\n        print(json.dumps(1))\nd = D()",
    "finalizes": "import weakref\nclass O: pass\no = O(); weakref.finalize(o, print, 'finalized')\ndef f(): return o",
    "calls back": "import weakref\nclass O: pass\no = O(); r = weakref.ref(o, lambda r: print('gone'))",
    # atexit, threads
    "orders its ends": "import atexit\natexit.register(print, 'first'); atexit.register(print, 'last'); print('end')",
    "fails in atexit": "import atexit\natexit.register(lambda: 1 / 0); atexit.register(print, 'before')",
    "registers in atexit": "import atexit\natexit.register(lambda: atexit.register(print, 'inner'))",
    "unregisters all": "import atexit\natexit.register(print, 'x'); atexit._clear()\nprint('end')",
    "runs all ends itself": _SAYS + "import atexit\na = Says('x'); atexit.register(print, 'x'); atexit._run_exitfuncs()",
    "has a thread that ends later": "import threading, time\n"
    "threading.Thread(target=lambda: (threading.main_thread().join(), time.sleep(0.05), print('thread'))).start()\n"
    "print('end')",
    "has a daemon": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nprint('end')",
    "has a daemon that writes": "import threading, os\n"
    "def w():\n    while True: os.write(2, b'')\nthreading.Thread(target=w, daemon=True).start()\nprint('end')",
    "has a timer": "import threading\nthreading.Timer(0.05, print, ['timer']).start()\nprint('end')",
    "fails in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='T'); t.start(); t.join()",
    # hooks and names
    "replaces the hook": "import sys\nsys.excepthook = lambda t, v, b: print('mine', t.__name__, v, b.tb_lineno)\n1 / 0",
    "fails in its hook": "import sys\ndef hook(t, v, b): raise ValueError('hook')\nsys.excepthook = hook\n1 / 0",
    "forgets its error": "import sys\nclass D:\n    def __del__(self): print('del')\nd = D()\n"
    "def hook(t, v, b):\n    print('mine'); del sys.last_value\nsys.excepthook = hook\n1 / 0",
    "hides its hook": "import sys\ndef hook(t, v, b):\n    sys.excepthook = sys.__excepthook__; sys.last_value = None\n"
    "sys.excepthook = hook\n1 / 0",
    "removes its file and exits": "import sys\ndel __file__, __cached__\nsys.exit(3)",
    "removes its file and raises": "del __file__\n1 / 0",
    "removes its file": _SAYS + "a = Says('x')\ndel __file__",
    "sets its file in the end": _SAYS + "import atexit\na = Says('x')\natexit.register(globals().update, __file__='x')",
    "says what failed before": "import sys\nsys.last_value = ValueError(1); sys.last_type = ValueError\nprint('end')",
    "shows an error and goes on": "import sys, code\n"
    "c = code.InteractiveConsole(); c.push('1 / 0'); c.push('x = 5'); print(sys.last_type, c.locals['x'])",
    "hides main": "import sys\nclass D:\n    def __del__(self): print('del')\nd = D()\ndel sys.modules['__main__']",
    "replaces main": "import sys, types\nclass D:\n    def __del__(self): print('del')\nd = D()\n"
    "sys.modules['__main__'] = types.ModuleType('__main__')",
    "puts no module in its place": "import sys\nclass D:\n    def __del__(self): print('del')\n"
    "sys.modules['odd'] = D(); sys.modules['none'] = None",
    "clears all modules": "import sys\nprint('end')\nfor name in list(sys.modules): del sys.modules[name]",
    "has a hook for unraisables": "import sys\nsys.unraisablehook = lambda a: print('mine', a.exc_value)\n"
    "class D:\n    def __del__(self): raise ValueError('del')\nd = D()\ndef f(): return d",
    "is inspected": "import os, sys\nos.environ['PYTHONINSPECT'] = '1'\nprint('end')",
    "collects nothing": _SAYS + "import gc\ngc.disable()\nb = [Says('ring')]; b.append(b); del b",
    "freezes all": _SAYS + "import gc\nb = [Says('ring')]; b.append(b); del b\ngc.freeze()",
}  # fmt: skip

WORKS: dict[str, str] = {
    "multiprocessing by fork": "import multiprocessing as m\ndef f(n): return n * 2\n"
    "if __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, range(4)))",
    "multiprocessing by spawn": "import multiprocessing as m\ndef f(n): return n * 2\n"
    "if __name__ == '__main__':\n    with m.get_context('spawn').Pool(2) as p: print(p.map(f, range(4)))",
    "multiprocessing with a queue": "import multiprocessing as m\ndef f(q): q.put(m.current_process().name)\n"
    "if __name__ == '__main__':\n    q = m.Queue(); p = m.Process(target=f, args=(q,)); p.start()\n"
    "    print(q.get()); p.join(); print(p.exitcode)",
    "a child that exits": "import multiprocessing as m, sys\n"
    "if __name__ == '__main__':\n    p = m.get_context('fork').Process(target=sys.exit, args=(4,)); p.start(); p.join()\n"
    "    print(p.exitcode)",
    "fork and exit": "import os, sys\nif os.fork() == 0: sys.exit(4)\nprint(os.wait()[1] >> 8)",
    "fork and go on to the end": "import os\npid = os.fork()\nif pid: os.wait()\nprint('parent' if pid else 'child')",
    "fork and fail": "import os\nif os.fork() == 0: raise ValueError('child')\nprint(os.wait()[1] >> 8)",
    "a pool of threads": "from concurrent.futures import ThreadPoolExecutor as P\n"
    "with P(3) as p: print(list(p.map(abs, range(-3, 0))))",
    "a pool of threads that is left": "from concurrent.futures import ThreadPoolExecutor as P\n"
    "import time\np = P(2); p.submit(lambda: (time.sleep(0.05), print('late')))\nprint('end')",
    "a pool of processes": "from concurrent.futures import ProcessPoolExecutor as P\n"
    "if __name__ == '__main__':\n    with P(2) as p: print(list(p.map(abs, range(-3, 0))))",
    "asyncio": "import asyncio\nasync def f(n):\n    await asyncio.sleep(0.01); return n\n"
    "async def main(): print(await asyncio.gather(f(1), f(2), asyncio.to_thread(abs, -3)))\nasyncio.run(main())",
    "asyncio with a child": "import asyncio, sys\nasync def main():\n"
    "    p = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(5)', stdout=-1)\n"
    "    print(await p.communicate(), p.returncode)\nasyncio.run(main())",
    "asyncio that fails": "import asyncio\nasync def main(): raise ValueError('late')\nasyncio.run(main())",
    "a loop that is left": "import asyncio\nl = asyncio.new_event_loop(); asyncio.set_event_loop(l)\nprint(l.is_running())",
    "subprocess": "import subprocess, sys\n"
    "print(subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv, sys.flags); sys.exit(3)', 'a'],"
    " capture_output=True, text=True))",
    "subprocess with input": "import subprocess\nprint(subprocess.run(['cat'], input=b'x' * 70000, capture_output=True)"
    ".stdout.count(b'x'))",
    "os.system": "import os\nprint(os.system('exit 3'), os.popen('echo x').read())",
    "signal handlers": "import signal, os\nsignal.signal(signal.SIGUSR1, lambda n, f: print('got', n))\n"
    "os.kill(os.getpid(), signal.SIGUSR1); signal.raise_signal(signal.SIGUSR1)\n"
    "print([signal.getsignal(n) for n in (2, 13, 15, 17)])",
    "alarms": "import signal\nsignal.signal(signal.SIGALRM, lambda n, f: print('alarm'))\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.02); signal.pause()",
    "blocked signals": "import signal\nprint(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending())",
    "what signals do": "print([l for l in open('/proc/self/status') if l.startswith(('Sig', 'Shd', 'NoNew', 'Cap'))][1:])",
    "faulthandler": "import faulthandler, sys\nprint(faulthandler.is_enabled())\nfaulthandler.enable()\n"
    "faulthandler.dump_traceback()",
    "faulthandler's last words": "import faulthandler, os\nfaulthandler.enable()\nos.abort()",
    "resource limits": "import resource as r\n"
    "print([r.getrlimit(getattr(r, 'RLIMIT_' + n)) for n in ('NOFILE', 'NPROC', 'CPU', 'CORE', 'STACK', 'AS', 'FSIZE')])",
    "who it is": "import os, sys\nprint(os.getuid(), os.getgid(), os.getgroups(), os.getpid(), os.getppid(), os.getsid(0),"
    " os.getpgrp(), os.umask(0), os.getcwd(), os.nice(0), os.uname().nodename, open('/proc/self/comm').read())",
    "its descriptors": "import os\nprint(sorted(f for f in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{f}')))\n"
    "print([os.get_inheritable(n) for n in range(4)])",
    "its command line": "import sys\nprint(open('/proc/self/cmdline').read(), sys.argv, sys.orig_argv, sys.executable)",
    "its flags": "import sys\nprint(sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.prefix)",
    "its path": "import sys\nprint(sys.path, sys.meta_path[-1], sys.path_hooks[0], sys.flags.safe_path)",
    "its recursion limit and switches": "import sys, gc\nprint(sys.getrecursionlimit(), sys.getswitchinterval(),"
    " gc.isenabled(), gc.get_threshold(), sys.gettrace(), sys.getprofile(), sys.getdefaultencoding(),"
    " sys.getfilesystemencoding(), sys.pycache_prefix, sys.tracebacklimit if hasattr(sys, 'tracebacklimit') else 0)",
    "its names": "print(__name__, __file__, __spec__, __package__, __doc__, type(__loader__), sorted(globals()),"
    " __builtins__)",
    "its streams": "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr):\n"
    "    print(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.fileno(), s.isatty(),"
    " s.seekable(), type(s.buffer))",
    "its stack": "import inspect, sys, traceback\nprint(len(inspect.stack()), sys._getframe().f_back)\n"
    "def f(): traceback.print_stack()\nf()",
    "its source": "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f), inspect.getmodule(f).__file__)",
    "main": "import __main__, sys\nx = 5\nprint(__main__.x, sys.modules['__main__'] is __main__, vars(__main__) is globals())",
    "pickles of its own classes": "import pickle, copy\nclass A:\n    def __init__(self, n): self.n = n\n"
    "print(pickle.loads(pickle.dumps(A(5))).n, copy.deepcopy(A(6)).n, A.__module__)",
    "no trace of casemate": "import sys\nprint([m for m in sys.modules if m.startswith('casemate')],"
    " [p for p in sys.path if 'casemate' in p], [k for k in sys.path_importer_cache if 'casemate' in k])",
    "no tools before they are imported": "import sys\nprint([m for m in sys.modules if m.startswith('mcptools')],"
    " [getattr(f, '__name__', f) for f in sys.meta_path][1:])",
    "the package of tools": "import importlib, inspect, sys\nimport mcptools\nfrom mcptools import _wire\n"
    "print(mcptools, mcptools.__spec__, mcptools.__spec__.loader is mcptools.__loader__, mcptools.__path__, _wire,\n"
    "    mcptools._wire is _wire is sys.modules['mcptools._wire'], inspect.getsource(mcptools.search),\n"
    "    [getattr(f, '__name__', f) for f in sys.meta_path][1:])\n"
    "for again in (importlib.reload(mcptools), importlib.reload(_wire)): print(again, again.__spec__)\n"
    "for name in [name for name in sys.modules if name.startswith('mcptools')]: del sys.modules[name]\n"
    "import mcptools as new\nprint(new is not mcptools, new)\n"
    "try: import mcptools.nothing\nexcept ModuleNotFoundError as error: print(error)",
    "a module of its own": "import own\nprint(own.__file__, own.value, own.__spec__.cached)",
    "a package of its own": "import package.inner\nprint(package.inner.__file__, package.__path__)",
    "a module that it writes": "open('late.py', 'w').write('x = 5')\nimport late\nprint(late.x)",
    "a module in output": "import sys\nopen('output/late.py', 'w').write('x = 5')\nsys.path.append('output')\n"
    "import late\nprint(late.x)",
    "a module that fails": "import failing",
    "a module that is missing": "import surely_not_there",
    "a module that hides another": "import colorsys\nprint(colorsys.__file__)",
    "warnings": "import warnings\nwarnings.warn('careful'); warnings.warn('old', DeprecationWarning)\n"
    "def f(): warnings.warn('deep', UserWarning, stacklevel=2)\nf(); f()\nprint(len(warnings.filters), warnings.filters)",
    "warnings of syntax": "x = 1\nif x is 'a': pass\nassert (x, 'y')",
    "warnings of resources": "import warnings\nwarnings.simplefilter('always')\nopen('/dev/null')\nprint(1)",
    "logging": "import logging\nlogging.warning('w'); logging.getLogger('a.b').error('e')\nprint(logging.root.handlers)",
    "unittest": "import unittest, re, sys, io\nclass T(unittest.TestCase):\n    def test_x(self): self.assertEqual(1, 1)\n"
    "    def test_y(self): self.assertEqual(1, 2)\nunittest.main(testRunner=unittest.TextTestRunner(open('/dev/null', 'w')))",
    "doctest": "'''\n>>> 1 + 1\n3\n'''\nimport doctest\nprint(doctest.testmod())",
    "argparse": "import argparse\np = argparse.ArgumentParser(); p.add_argument('--n', required=True); p.parse_args()",
    "dataclasses": "import dataclasses, typing\n@dataclasses.dataclass\nclass A:\n    x: 'list[int]'\n"
    "print(typing.get_type_hints(A), A([1]))",
    "enum, abc, functools": "import enum, functools\nclass E(enum.Enum):\n    A = 1\n@functools.cache\ndef f(n): return E(n)\n"
    "print(f(1), f.cache_info())",
    "threads": "import threading\nt = threading.Thread(target=lambda: print(threading.current_thread().name)); t.start();"
    " t.join()\nprint(threading.main_thread().name, threading.active_count(), threading.get_native_id(), len(threading.enumerate()))",
    "sqlite": "import sqlite3\nc = sqlite3.connect('x.db'); c.execute('create table t (n)'); c.execute('insert into t values (5)')\n"
    "c.commit(); print(c.execute('select n from t').fetchall())",
    "temporary files": "import tempfile, os\nwith tempfile.NamedTemporaryFile() as f: print(os.path.dirname(f.name))\n"
    "print(tempfile.gettempdir(), os.path.expanduser('~'))",
    "locale": "import locale, time\nprint(locale.getlocale(), locale.getpreferredencoding(), time.tzname, time.timezone)",
    "input": "print(input('? ')); import sys; print(sys.stdin.read())",
    "stdin by lines": "import sys\nfor line in sys.stdin: print(repr(line))",
    "no tty": "import sys, os\ntry: print(os.get_terminal_size())\nexcept OSError as e: print(e.errno)\nimport shutil\n"
    "print(shutil.get_terminal_size())",
    "exec and compile": "exec(compile('def f(): return 1 / 0', 'x.py', 'exec'))\nf()",
    "runpy": "import runpy\nprint(runpy.run_path('own.py')['value'])",
    "a wrong import at the end": "import atexit\n@atexit.register\ndef end():\n    import decimal, own\n"
    "    print(decimal.Decimal(1), own.value)",
    "display": "display({'a': 1}); print('x')",
    "quit": "quit(4)",
    "help": "help(len)",
    "breakpoint": "breakpoint()\nprint('x')",
    "platform": "import platform\nprint(platform.uname(), platform.python_version())",
    "site": "import site, sysconfig\nprint(site.ENABLE_USER_SITE, site.getsitepackages(), sysconfig.get_paths()['purelib'])",
}  # fmt: skip

FILES = {
    "own.py": "value = 5\n",
    "failing.py": "def f():\n    raise LookupError('in a module')\nf()\n",
    "package/__init__.py": "",
    "package/inner.py": "",
    "colorsys.py": "",
}

"""The same small programs in every language: a new language adds its column, and each test judges it."""

from __future__ import annotations

Programs = dict[str, str]

HELLO: Programs = {
    "python": "print('hello')",
    "node": "console.log('hello')",
    "shell": "echo hello",
}
BOTH_STREAMS: Programs = {
    "python": "import sys; print('out'); print('err', file=sys.stderr)",
    "node": "console.log('out'); console.error('err')",
    "shell": "echo out; echo err >&2",
}
EXIT: Programs = {
    "python": "import sys; sys.exit({code})",
    "node": "process.exit({code})",
    "shell": "exit {code}",
}
KILL_SELF: Programs = {
    "python": "import os; os.kill(os.getpid(), {signal})",
    "node": "process.kill(process.pid, {signal}); setInterval(() => {{}}, 1000)",
    "shell": "kill -{signal} $$",
}
ECHO_STDIN: Programs = {
    "python": "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())",
    "node": "process.stdin.pipe(process.stdout)",
    "shell": "cat",
}
ENVIRONMENT: Programs = {  # NUL-separated, as the kernel hands it over to a program that this one starts
    "python": "import os; os.execv('/usr/bin/env', ['env', '-0'])",
    "node": "process.stdout.write(require('child_process').execFileSync('/usr/bin/env', ['-0']))",
    "shell": "exec env -0",
}
VARIABLE: Programs = {
    "python": "import os; print(os.environ['GREETING'], end='')",
    "node": "process.stdout.write(process.env.GREETING)",
    "shell": 'printf %s "$GREETING"',
}
ARGUMENTS: Programs = {
    "python": "import sys; print(*sys.argv[1:], sep='\\n')",
    "node": "console.log(process.argv.slice(2).join('\\n'))",
    "shell": 'printf "%s\\n" "$@"',
}
FOLDER: Programs = {
    "python": "import os; print(os.getcwd())",
    "node": "console.log(process.cwd())",
    "shell": "pwd",
}
READ_FILE: Programs = {
    "python": "import sys; sys.stdout.buffer.write(open('data/in.bin', 'rb').read())",
    "node": "process.stdout.write(require('fs').readFileSync('data/in.bin'))",
    "shell": "cat data/in.bin",
}
LEAVE_FILES: Programs = {
    "python": """
import os
os.makedirs("output/deep"); os.makedirs("notes")
open("output/deep/table.csv", "w").write("a,b\\n1,2\\n")
open("notes/plain.txt", "w").write("made")
open("changed.txt", "a").write(" and changed")
open("same.txt", "w").write("same")
os.symlink("/etc/passwd", "link")
os.mkfifo("fifo")
open("/tmp/elsewhere", "w").write("no artifact")
""",
    "node": """
const fs = require('fs');
fs.mkdirSync('output/deep', {recursive: true}); fs.mkdirSync('notes');
fs.writeFileSync('output/deep/table.csv', 'a,b\\n1,2\\n');
fs.writeFileSync('notes/plain.txt', 'made');
fs.appendFileSync('changed.txt', ' and changed');
fs.writeFileSync('same.txt', 'same');
fs.symlinkSync('/etc/passwd', 'link');
require('child_process').execSync('mkfifo fifo');
fs.writeFileSync('/tmp/elsewhere', 'no artifact');
""",
    "shell": """
mkdir -p output/deep notes
printf 'a,b\\n1,2\\n' > output/deep/table.csv
printf made > notes/plain.txt
printf ' and changed' >> changed.txt
printf same > same.txt
ln -s /etc/passwd link
mkfifo fifo
echo no artifact > /tmp/elsewhere
""",
}
UNICODE: Programs = {
    "python": "print('häß 漢字 🦊')",
    "node": "console.log('häß 漢字 🦊')",
    "shell": "echo 'häß 漢字 🦊'",
}
BINARY: Programs = {
    "python": "import sys; sys.stdout.buffer.write(bytes(range(256)))",
    "node": "process.stdout.write(Buffer.from([...Array(256).keys()]))",
    "shell": "printf '%b' \"$(printf '\\\\x%02x' $(seq 0 255))\"",
}
LONG_LINE: Programs = {
    "python": "print('x' * 500_000)",
    "node": "console.log('x'.repeat(500_000))",
    "shell": "head -c 500000 /dev/zero | tr '\\0' x; echo",
}
MANY_LINES: Programs = {
    "python": "for n in range(50_000): print(n)",
    "node": "for (let n = 0; n < 50_000; n++) console.log(n)",
    "shell": "seq 0 49999",
}
NUMBERED: Programs = {  # {lines} lines of 100 bytes, each another
    "python": "import sys\nfor n in range({lines}): sys.stdout.write(f'{{n:099}}\\n')",
    "node": "let t = ''; for (let n = 0; n < {lines}; n++) t += String(n).padStart(99, '0') + '\\n';"
    " process.stdout.write(t)",
    "shell": "seq -f %099.0f 0 $(({lines} - 1))",
}
FAIL: Programs = {
    "python": "def broken():\n    raise KeyError('häß')\nbroken()",
    "node": "function broken() {\n  throw new RangeError('häß');\n}\nbroken();",
}
SPIN: Programs = {
    "python": "while True: pass",
    "node": "for (;;) {}",
    "shell": "while :; do :; done",
}
PARTIAL_THEN_SPIN: Programs = {
    "python": "print('begun', flush=True); open('output/partial.txt', 'w').write('kept')\nwhile True: pass",
    "node": "require('fs').writeSync(1, 'begun\\n');"
    " require('fs').writeFileSync('output/partial.txt', 'kept'); for (;;) {}",
    "shell": "echo begun; printf kept > output/partial.txt; while :; do :; done",
}
STAY: Programs = {  # says that it is there, then waits for ever
    "python": "print('ready', flush=True)\nimport signal\nwhile True: signal.pause()",
    "node": "console.log('ready'); setInterval(() => {}, 1e6)",
    "shell": "echo ready; while :; do sleep 1000; done",
}


def numbered(lines: int) -> bytes:
    """What NUMBERED prints."""
    return b"".join(b"%099d\n" % n for n in range(lines))

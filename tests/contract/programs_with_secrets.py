"""Programs that have a secret in API_TOKEN and try to say it, in every language."""

from __future__ import annotations

import os

S = f"tr0ub4dor&{3 if os.geteuid() else 4} <is> not/a+good one"  # not another user's, whose tests may run beside these
NAME = "API_TOKEN"
MARKER = f"[secret:{NAME}]"
Programs = dict[str, str]

PRINTED: Programs = {
    "python": "import os; print(os.environ['API_TOKEN'])",
    "node": "console.log(process.env.API_TOKEN)",
    "shell": 'echo "$API_TOKEN"',
}
REVERSED: Programs = {  # which nobody looks for
    "python": "import os; print(len(os.environ['API_TOKEN']), os.environ['API_TOKEN'][::-1])",
    "node": "const t = process.env.API_TOKEN; console.log(t.length, [...t].reverse().join(''))",
    "shell": 'echo ${#API_TOKEN} "$(printf %s "$API_TOKEN" | rev)"',
}
FAILED: Programs = {  # in an exception, a warning, on stderr, as the exit message, in the source line of a traceback
    "python": f"""
import os, sys, warnings
t = os.environ['API_TOKEN']
sys.stderr.write(t + '\\n')
warnings.warn(t)
print(repr(t), [t.encode()])
try:
    raise KeyError({S!r})
finally:
    sys.exit(t)
""",
    "node": f"""
const t = process.env.API_TOKEN
console.error([t]); process.emitWarning(t)
throw new Error({S!r})
""",
    "shell": f"""
set -x
echo "$API_TOKEN" >&2; ls "$API_TOKEN"; '{S}'
exit 3
""",
}
LONG_ERRORS: Programs = {  # which are cut, within the secret
    "python": "import os; t = os.environ['API_TOKEN']; raise ValueError('x' * {n} + t * (1 << 17) + 'x' * {n})",
    "node": "const t = process.env.API_TOKEN; throw new Error('x'.repeat({n}) + t.repeat(1 << 17) + 'x'.repeat({n}))",
}
IN_TWO: Programs = {
    "python": """
import os, sys, time
t = os.environ['API_TOKEN']
for part in (t[:9], t[9:], ' '):
    sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.3)
""",
    "node": """
const t = process.env.API_TOKEN, parts = [t.slice(0, 9), t.slice(9), ' ']
const next = () => { if (parts.length) { process.stdout.write(parts.shift()); setTimeout(next, 300) } }
next()
""",
    "shell": """
printf %s "${API_TOKEN:0:9}"; sleep 0.3
printf %s "${API_TOKEN:9}"; sleep 0.3
printf " "
""",
}
BEGUN: Programs = {
    "python": "import os, time; print('so:', os.environ['API_TOKEN'][:9], end='', flush=True); time.sleep(60)",
    "node": "process.stdout.write('so: ' + process.env.API_TOKEN.slice(0, 9)); setTimeout(() => 0, 60000)",
    "shell": 'printf "so: %s" "${API_TOKEN:0:9}"; sleep 60',
}
ON_BOTH: Programs = {
    "python": "import os, sys; t = os.environ['API_TOKEN']; print(t[:9], end='', flush=True); sys.stderr.write(t[9:])",
    "node": "const fs = require('fs'), t = process.env.API_TOKEN\n"
    "fs.writeSync(1, t.slice(0, 9)); fs.writeSync(2, t.slice(9))",
    "shell": 'printf %s "${API_TOKEN:0:9}"; printf %s "${API_TOKEN:9}" >&2',
}
MUCH: Programs = {  # a secret lies across the end of what stdout's head holds, and of what is kept at all
    "python": """
import os
t = os.environ['API_TOKEN']
for n in range(4000):
    print(t * 7, end='.' * (n % 5), flush=n % 50 == 0)
""",
    "node": """
const t = process.env.API_TOKEN
for (let n = 0; n < 4000; n++) process.stdout.write(t.repeat(7) + '.'.repeat(n % 5))
""",
    "shell": """
for n in {1..4000}; do printf "%s$API_TOKEN$API_TOKEN$API_TOKEN$API_TOKEN" "${n: -1}"; done
""",
}
FILES: Programs = {
    "python": """
import os
u = os.environ['API_TOKEN']
t = u.replace('/', '-')
open(f'output/{t}.txt', 'w').write('a ' + u)
open('output/raw.bin', 'wb').write(b'\\0\\xff' + u.encode() + b'\\0')
os.mkdir(t)
open(f'{t}/inner.txt', 'w').write('x')
os.symlink('/nowhere', f'{t}/link')
open('plain.txt', 'w').write('p')
""",
    "node": """
const fs = require('fs'), u = process.env.API_TOKEN, t = u.replace('/', '-')
fs.writeFileSync(`output/${t}.txt`, 'a ' + u)
fs.writeFileSync('output/raw.bin', Buffer.concat([Buffer.from([0, 255]), Buffer.from(u), Buffer.from([0])]))
fs.mkdirSync(t)
fs.writeFileSync(`${t}/inner.txt`, 'x')
fs.symlinkSync('/nowhere', `${t}/link`)
fs.writeFileSync('plain.txt', 'p')
""",
    "shell": """
t="${API_TOKEN//\\//-}"
printf "a %s" "$API_TOKEN" >"output/$t.txt"
printf "\\0\\xff%s\\0" "$API_TOKEN" >output/raw.bin
mkdir "$t"; printf x >"$t/inner.txt"; ln -s /nowhere "$t/link"; printf p >plain.txt
""",
}
LOOK_FOR_IT: Programs = {  # wherever an earlier run could have left it; what is looked for is given backwards
    "python": """
import os
wanted = os.environ['WANTED'][::-1].encode()
found = [name for name, value in os.environb.items() if wanted in value]
for top in ('/tmp', '/dev/shm', '/workspace', '/home', '/proc'):
    for folder, _, names in os.walk(top):
        if folder.count('/') > 4:
            continue
        for name in names:
            if name in ('kmsg', 'mem', 'pagemap', 'clear_refs'):
                continue
            try:
                data = os.read(os.open(f'{folder}/{name}', os.O_RDONLY | os.O_NONBLOCK), 1 << 20)
            except OSError:
                continue
            if wanted in data:
                found.append(folder + name)
print('found', found)
""",
    "shell": """
wanted=$(printf %s "$WANTED" | rev)
found=
while IFS= read -r -d "" value; do case $value in *"$wanted"*) found+=" env";; esac; done < <(env -0)
for file in $(find /tmp /dev/shm /workspace /home -type f 2>/dev/null) /proc/[0-9]*/environ; do
    tr "\\0" "\\n" <"$file" 2>/dev/null | grep -qF -- "$wanted" && found+=" $file"
done
echo "found [$found]"
""",
}
OF_MANY_KINDS = """
import os, json, zipfile, base64
t = os.environ['API_TOKEN']
png = b'\\x89PNG\\r\\n\\x1a\\n\\0tEXt' + t.encode()
open('a.png', 'wb').write(png)
json.dump({'cells': [{'source': [t]}]}, open('n.ipynb', 'w'))
for name, text in (('z.zip', t), ('ok.zip', '')):
    with zipfile.ZipFile(name, 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('first.txt', 'y' * 5000)
        archive.writestr('in.txt', 'x' * 5000 + text)
pictured = base64.encodebytes(png).decode()
display({'image/png': pictured, 'text/plain': 'a picture', 'application/json': [t, {t: t}], 'text/html': t}, raw=True)
"""
WAIT: Programs = {
    "python": "import sys, time, os; print('here', flush=True); time.sleep(60)",
    "node": "console.log('here'); setTimeout(() => 0, 60000)",
    "shell": "echo here; sleep 60",
}

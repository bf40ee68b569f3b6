# Work that programs are right to expect to work. As honest.py.
check() {
  local name=$1 told
  if told=$("$name" 2>&1); then echo "held $name"; else echo "broke $name $told"; fi
}

standard_input() { [ "$(cat </dev/stdin)" = given ]; }
pipes() { [ "$(printf 'b\na\n' | sort | head -1 | tr a z)" = z ]; }
pipe_ends() { yes | head -1 >/dev/null; [ "${PIPESTATUS[0]}" = 141 ]; }
redirection() { echo x >/dev/null && echo x >/dev/stderr && echo x >/dev/stdout && : >file && [ -e file ]; }
here_documents() { [ "$(cat <<'X'
text
X
)" = text ] && [ "$(cat <<<word)" = word ]; }
process_substitution() { diff <(echo a) <(echo a); }
temporary_files() { f=$(mktemp) && d=$(mktemp -d) && echo x >"$f" && cp "$f" "$d" && rm -r "$f" "$d"; }
jobs_and_waiting() { sleep 0 & wait $! && sleep 30 & kill %1 2>/dev/null || kill $!; }
job_control() { bash -i -c 'set -m; sleep 30 & kill -STOP %1; kill -CONT %1; kill %1; wait %1; [ $? = 143 ]' </dev/null; }
signals() { trap 'got=1' USR1; kill -USR1 $BASHPID; [ "$got" = 1 ]; }
coprocess() { coproc cat; echo x >&"${COPROC[1]}"; read -r -t 5 line <&"${COPROC[0]}"; kill "$COPROC_PID"; [ "$line" = x ]; }
finding() { mkdir -p d/e && touch d/e/f && [ "$(find d -type f | xargs -n1 basename)" = f ]; }
archives() { mkdir -p t && echo x >t/f && tar czf t.tgz t && rm -r t && tar xzf t.tgz && [ "$(cat t/f)" = x ]; }
texts() { printf 'a 1\nb 2\n' | awk '{s+=$2} END {exit s!=3}' && echo aXb | sed 's/X/-/' | grep -q a-b; }
interfaces() { command -v ip >/dev/null || return 0; ip -o addr | grep -q '127.0.0.1/8'; }
loopback() { exec 3<>/dev/udp/127.0.0.1/9 && exec 3>&-; }
identity() { [ "$(id -u)" = 1000 ] && [ "$(whoami)" = user ] && hostname >/dev/null && [ -n "$HOME" ] && cd ~; }
listing() { ls / >/dev/null && ls -la . >/dev/null && ls /proc/self >/dev/null && df . >/dev/null && ps >/dev/null 2>&1 || command -v ps >/dev/null; }
own_given_file() { echo more >>given.txt; }
times() { [ "$(TZ=UTC date -d @0 +%Y)" = 1970 ] && date >/dev/null; }
random() { head -c 8 /dev/urandom | wc -c | grep -q 8; }
versioning() {
  command -v git >/dev/null || return 0
  git init -q repo && cd repo && echo x >f && git add f && git -c user.name=a -c user.email=a@b commit -qm m && git log --oneline
}
locale_of() { [ "$LANG" = C.UTF-8 ] && [ "$(printf 'ü' | wc -m)" = 1 ]; }

for name in standard_input pipes pipe_ends redirection here_documents process_substitution temporary_files \
  jobs_and_waiting job_control signals coprocess finding archives texts interfaces loopback identity listing own_given_file \
  times random versioning locale_of; do
  check $name
done
echo "end of attack"

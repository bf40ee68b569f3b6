# Hurt a process that is not ours. As process.py.
. tests/escapes/payloads/attempts.sh

for name in environ cmdline "fd/$FD"; do attempt "read $name" cat "/proc/$VICTIM/$name"; done
attempt "renice" renice -n 5 -p "$VICTIM"
attempt "limits" prlimit --pid "$VICTIM"
attempt "enter" nsenter -t "$VICTIM" -a true
attempt "stop" kill -STOP "$VICTIM"
attempt "program stop" /bin/kill -STOP "$VICTIM"
if [ -n "${KILL:-}" ]; then
  attempt "terminate" kill -TERM "$VICTIM"
  attempt "kill" kill -KILL "$VICTIM"
fi
finish

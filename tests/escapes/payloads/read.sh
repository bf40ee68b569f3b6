# Read what belongs to the host: files, processes, descriptors. As read.py.
. tests/escapes/payloads/attempts.sh

IFS=:
for name in $PATHS; do
  for prefix in "" /proc/self/root /proc/1/root /../../../../..; do
    attempt "read $prefix$name" cat "$prefix$name"
  done
  link=link-${name##*/}
  attempt "link $name" ln -s "$name" "$link"
  attempt "read by link $name" cat "$link"
  attempt "copy $name" cp "$name" copy
  attempt "tar $name" tar -cf - "$name"
  attempt "list $name" ls -la "${name%/*}"
done
for name in $DIGESTS; do
  attempt "digest $name" cat "$name"
done
pids=$PIDS
if [ -n "${SCAN:-}" ]; then
  for entry in /proc/[0-9]*; do pids="$pids:${entry#/proc/}"; done
fi
for pid in $pids; do
  for name in environ cmdline maps; do attempt "read $pid/$name" cat "/proc/$pid/$name"; done
  for fd in 3 4 5 6 7 8 9; do attempt "read $pid/fd/$fd" timeout 1 head -c 4096 "/proc/$pid/fd/$fd"; done
done
attempt "own environment" env
for fd in {3..60}; do
  # A name in /proc opens the file again, from its start.
  [ -f "/proc/self/fd/$fd" ] && attempt "inherited $fd" cat "/proc/self/fd/$fd"
done
finish

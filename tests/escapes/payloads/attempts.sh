# What every attack in Shell shares; as attempts.py.

# attempt NAME COMMAND...: run it, and tell of what it printed only canaries and a digest.
attempt() {
  local name=$1 data status
  shift
  data=$(mktemp)
  "$@" >"$data" 2>/dev/null </dev/null
  status=$?
  if [ $status = 0 ]; then
    echo "tried $name: done sha256:$(sha256sum <"$data" | cut -d' ' -f1) $(grep -aoE 'canary-[0-9a-f]{32}' "$data" | sort -u | tr '\n' ' ')"
  else
    echo "tried $name: failed $status $(grep -aoE 'canary-[0-9a-f]{32}' "$data" | sort -u | tr '\n' ' ')"
  fi
  rm -f "$data"
}

finish() {
  echo "end of attack"
  if [ -n "${HOLD:-}" ]; then exec sleep 60; fi
}

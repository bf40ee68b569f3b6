# Outlive the run. As daemon.py.
. tests/escapes/payloads/attempts.sh

trap '' TERM INT HUP
(setsid bash -c 'exec -a "$MARK" sleep 60' &)
(nohup setsid bash -c 'exec -a "$MARK" sleep 60' &)
bash -c 'kill -STOP $$; exec -a "$MARK" sleep 60' "$MARK" &
disown
bash -c 'exec -a "$MARK" sleep 60' &
disown
finish

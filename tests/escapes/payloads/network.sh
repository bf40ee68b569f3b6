# Come to every listener of the host. As network.py.
. tests/escapes/payloads/attempts.sh

tcp() { exec 9<>"/dev/tcp/$1/$2"; }
udp() { echo escaped >"/dev/udp/$1/$2"; }
while IFS='=' read -r name value; do
  case $name in
    TCP_*) attempt "$name" tcp ${value} ;;
    UDP_*) attempt "$name" udp ${value} ;;
  esac
done < <(env)
finish

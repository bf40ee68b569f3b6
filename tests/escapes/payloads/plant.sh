# Leave in the caller's project what somebody or some tool runs later. As plant.py.
. tests/escapes/payloads/attempts.sh

plant() {
  mkdir -p "$(dirname "$1")"
  printf '#!/bin/sh\necho planted\n' >"$1"
  chmod 755 "$1"
}
for name in .git/hooks/pre-commit .git/config .envrc .vscode/tasks.json .mcp.json .bashrc .profile evil.pth \
  sitecustomize.py .venv/bin/activate .gitconfig .ssh/authorized_keys; do
  attempt "plant $name" plant "$name"
done
attempt "git" git config core.hooksPath /tmp
printf honest >src/result.txt
finish

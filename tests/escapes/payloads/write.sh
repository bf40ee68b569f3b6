# Change what belongs to the host. As write.py.
. tests/escapes/payloads/attempts.sh

append() { echo changed >>"$1"; }
over() { echo changed >|"$1"; }
IFS=:
nth=0
for name in $FILES; do
  nth=$((nth + 1))
  attempt "append $name" append "$name"
  attempt "over $name" over "$name"
  attempt "truncate $name" truncate -s 1 "$name"
  attempt "chmod $name" chmod 640 "$name"
  attempt "touch $name" touch -d @1 "$name"
  attempt "link $name" ln -s "$name" "link-$nth"
  attempt "write by link $name" append "link-$nth"
  attempt "hard link $name" ln "$name" "hard-$nth"
  attempt "append by /proc $name" append "/proc/self/root$name"
  attempt "move over $name" mv -f "link-$nth" "$name"
  attempt "remove $name" rm -f "$name"
  [ -e "$name" ] || echo "gone $name"
done
for folder in $FOLDERS; do
  for name in sitecustomize.py evil.pth .bashrc new; do attempt "new $folder/$name" append "$folder/$name"; done
  attempt "folder in $folder" mkdir "$folder/made"
done
finish

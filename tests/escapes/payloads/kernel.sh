# Ask for namespaces and mounts by the system's own programs.
. tests/escapes/payloads/attempts.sh

attempt "unshare user" unshare -U true
attempt "unshare all" unshare -Urmn true
attempt "enter init" nsenter -t 1 -a true
if [ -d /program ]; then
  attempt "mount" mount -t tmpfs "$MARK" /tmp
  attempt "bind" mount --bind /usr /tmp
  attempt "remount" mount -o remount,bind,rw /
  attempt "umount" umount -l /proc/kallsyms
  attempt "chroot" chroot /tmp true
fi
echo "made $(unshare -U readlink /proc/self/ns/user) $(unshare -Urn readlink /proc/self/ns/user)"
finish

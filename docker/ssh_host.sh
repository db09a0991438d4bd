#!/bin/sh
# Makes a container one host of a cluster whose containers share the folder /ssh.
#
#   ssh_host serve            be a host: run sshd in the foreground
#   ssh_host run N CMD...     be the user: wait for N hosts, then run CMD
#
# The first container makes the cluster's login key, and each host adds its host key. Only
# containers that share the folder can log in.
set -eu
shared=${SSH_HOST_FOLDER:-/ssh}
mkdir -p "$shared/hosts" "$HOME/.ssh"
chmod 700 "$HOME/.ssh"

# mkdir succeeds in only one container.
if mkdir "$shared/key" 2>/dev/null; then
  ssh-keygen -q -t ed25519 -N '' -C cluster -f "$shared/key/new"
  mv "$shared/key/new.pub" "$shared/key/identity.pub"
  mv "$shared/key/new" "$shared/key/identity"
fi
waited=0
while [ ! -e "$shared/key/identity" ]; do
  waited=$((waited + 1))
  [ $waited -le 300 ] || { echo "ssh_host: no key in $shared after 30 s" >&2; exit 1; }
  sleep 0.1
done

case ${1:-} in
serve)
  host_key=/etc/ssh/ssh_host_ed25519_key
  [ -e $host_key ] || ssh-keygen -q -t ed25519 -N '' -f $host_key
  cp "$shared/key/identity.pub" "$HOME/.ssh/authorized_keys"
  name=$(hostname)
  echo "$name $(cut -d' ' -f1,2 $host_key.pub)" >"$shared/hosts/$name.new"
  mv "$shared/hosts/$name.new" "$shared/hosts/$name"
  exec /usr/sbin/sshd -D -e -h $host_key -o PasswordAuthentication=no \
    -o PermitRootLogin=prohibit-password -o UsePAM=no -o PidFile=none
  ;;
run)
  count=$2
  shift 2
  waited=0
  while [ "$(ls "$shared/hosts" | grep -cv '\.new$')" -lt "$count" ]; do
    waited=$((waited + 1))
    [ $waited -le 600 ] || { echo "ssh_host: fewer than $count hosts" >&2; exit 1; }
    sleep 0.1
  done
  install -m 600 "$shared/key/identity" "$HOME/.ssh/id_ed25519"
  cat "$shared"/hosts/* >"$HOME/.ssh/known_hosts"
  exec "$@"
  ;;
*)
  echo "usage: ssh_host serve | ssh_host run N CMD..." >&2
  exit 2
  ;;
esac

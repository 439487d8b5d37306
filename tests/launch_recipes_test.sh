#!/usr/bin/env bash
# bench/recipes without a cluster's manager: nodes that are started one by one; and ranks in what a container is, user, process, network and
# mount namespaces of their own, without any right and with next to nothing in /dev/shm. Those for Slurm: launch_slurm_test.
# ctest: timeout=120 labels=plain
set -u
. "$(dirname "$0")/harness/launch.sh"
recipes=$(dirname "$0")/../bench/recipes

port=$(free_port)
bash "$recipes/node.sh" 1 2 2 127.0.0.1 "$port" "$ringzero" bench $quick >"$work/second" 2>&1 &
works "node.sh" bash "$recipes/node.sh" 0 2 2 127.0.0.1 "$port" "$ringzero" bench $quick
wait $! || fail "node.sh: the second node" "$work/second"
says "node.sh" '# *Rank *3 Pid'
bash "$recipes/node.sh" 0 1 2 127.0.0.1 "$(free_port)" "$ringzero" bench no_collective >"$work/out" 2>&1 && fail "node.sh: a failure is success"
says "node.sh" 'no_collective'

# Every package that the image is built from is one that this project asks for, and its program starts from what it installs.
for package in $(sed -n '/^FROM debian:12 AS build/,/^COPY/p' "$recipes/Containerfile" | grep -oE '[a-z0-9-]+-dev'); do
  grep -qrw -- "$package" "$recipes/../packages.sh" "$recipes/../../tests/run.sh" || fail "Containerfile: $package is asked for nowhere else"
done

cat >"$work/inside" <<'SCRIPT'
mount -t tmpfs -o size=4k tmpfs /dev/shm && mount -t proc proc /proc && ip link set lo up || exit 77
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
SCRIPT
inside="setpriv --reuid 65534 --regid 65534 --clear-groups unshare -U -r -m -p -n --fork bash $work/inside"
chmod 755 "$work" && chmod 644 "$work/inside"
if [ "$(id -u)" = 0 ] && command -v setpriv ip >/dev/null && $inside true 2>/dev/null && $inside "$ringzero" --version >/dev/null 2>&1; then
  works "as in a container" $inside "$ringzero" bench $quick --ranks 2
  says "as in a container" ' shm'
else
  echo "no user namespaces here, or a user cannot reach the program: not tried as in a container"
fi
finish

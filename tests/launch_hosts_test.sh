#!/usr/bin/env bash
# Several hosts: three network namespaces on one bridge, with IPv4 or IPv6 addresses only; and case C10, hosts that are only
# pretended. Everything lives in namespaces of its own, which end with the test.
# ctest: timeout=120 labels=plain
#
#   host a  eth0 10.77.0.1 / fd77::1 ──┐
#   host b  eth0 10.77.0.2 / fd77::2 ──┼── bridge
#   host c  eth0 10.77.0.3 / fd77::3 ──┘
set -u
if [ "${RINGZERO_INNER:-}" != 1 ]; then
  inner=(env RINGZERO_INNER=1 unshare --net --mount --uts --propagation private)
  if unshare --user --map-root-user --net --mount --uts true 2>/dev/null; then
    exec "${inner[@]}" --user --map-root-user bash "$0"
  fi
  exec "${inner[@]}" bash "$0"
fi
. "$(dirname "$0")/harness/launch.sh"
end() { [ -z "$(jobs -p)" ] || { kill -KILL $(jobs -p); wait; } 2>/dev/null; rm -rf "$work"; }
trap end EXIT
need_program ip iproute2

ip link set lo up
# A host is a network namespace that a sleeping process holds.
declare -A holder
make_host() {
  local name=$1 number=$2
  unshare --net --mount --uts --propagation private bash -c "
    hostname host-$name && printf '127.0.0.1 localhost\n%s ringzero-a\n' '$([ $number = 1 ] && echo 127.0.1.1 || echo 10.77.0.1)' >'$work/hosts-$name' &&
    mount --bind '$work/hosts-$name' /etc/hosts; exec sleep 300" &
  holder[$name]=$!
  for _ in $(seq 100); do [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/$$/ns/net)" ] && break; sleep 0.02; done
  for _ in $(seq 100); do [ "$(cat /proc/$!/comm)" = sleep ] && break; sleep 0.02; done
  ip link add "veth-$name" type veth peer name eth0 netns $! && ip link set "veth-$name" master bridge up &&
    on $name ip link set lo up && on $name ip link set eth0 up
}
# on HOST COMMAND…
on() { local name=$1; shift; nsenter --target "${holder[$name]}" --net --mount --uts "$@"; }
# addresses FAMILY: hosts have addresses of this family alone.
addresses() {
  local number=0 name
  for name in a b c; do
    number=$((number + 1))
    on $name ip address flush dev eth0
    if [ "$1" = 4 ]; then on $name ip address add 10.77.0.$number/24 dev eth0
    else on $name ip -6 address add fd77::$number/64 dev eth0 nodad; fi
  done
}
ip link add bridge type bridge 2>/dev/null && ip link set bridge up && make_host a 1 && make_host b 2 && make_host c 3 ||
  skip "network namespaces with veth and a bridge are not to be had here (root, or user namespaces, and the kernel's veth and bridge)"

# spread PLACES VARIABLE=VALUE…: one rank per place, the place being its host, all started by torchrun's variables. What rank r
# prints is in $work/rank<r>; the worst exit code is returned.
spread() {
  local places=($1) rank code=0 worst=0 pids=()
  shift
  for rank in "${!places[@]}"; do
    on "${places[rank]}" env "$@" RINGZERO_HOST="${places[rank]}" RANK=$rank WORLD_SIZE=${#places[@]} \
      MASTER_PORT=29500 timeout 25 "$ringzero" bench $quick --transport "$transport" --log info >"$work/rank$rank" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || code=$?; [ $code -gt $worst ] && worst=$code; done
  cp "$work/rank0" "$work/out"
  return $worst
}
# carries WHAT TRANSPORTS: what each rank sends over, by rank.
carries() {
  local found
  found=$(sed -n 's/^# *Rank .* sends over \([a-z]*\).*/\1/p' "$work/out" | tr '\n' ' ')
  [ "$found" = "$2 " ] || fail "$1: ranks send over \"$found\", expected \"$2 \"" "$work/out"
}
# joins WHAT PLACES TRANSPORTS VARIABLE=VALUE…
joins() {
  local what=$1 places=$2 transports=$3
  shift 3
  spread "$places" "$@" || fail "$what: exit code $?" "$work/rank1"
  good "$what" "$work/out"
  carries "$what" "$transports"
}

# Hosts {2,1,2}, interleaved. The ring visits each host once, 0 3 | 1 4 | 2: shared memory within a host, TCP to the next.
mixed="shm shm tcp tcp tcp"
transport=auto
addresses 4
joins "IPv4" "a c b a c" "$mixed" MASTER_ADDR=10.77.0.1
joins "two levels" "a b b a" "shm shm tcp tcp" MASTER_ADDR=10.77.0.1
grep -q '; in two levels, 2 hosts of 2 ranks;' "$work/out" || fail "two levels: not told" "$work/out"
grep -q '^# Bytes to other hosts per rank .* OK$' "$work/out" || fail "two levels: what leaves a host is not what is predicted" "$work/out"
joins "a name that is 127.0.1.1 on its own host" "a c b a c" "$mixed" MASTER_ADDR=ringzero-a
joins "a named interface" "a c b a c" "$mixed" MASTER_ADDR=10.77.0.1 RINGZERO_INTERFACE=eth0
transport=tcp
joins "tcp alone" "a b a" "tcp tcp tcp" MASTER_ADDR=10.77.0.1
transport=auto
spread "a b c" MASTER_ADDR=10.77.0.1 RINGZERO_INTERFACE=lo && fail "loopback for other hosts: success" "$work/out"
for rank in 0 1 2; do
  grep -q 'several hosts, but the address of rank 0 is 127.0.0.1.*set RINGZERO_INTERFACE' "$work/rank$rank" ||
    fail "loopback for other hosts: rank $rank does not say so" "$work/rank$rank"
done
addresses 6
joins "IPv6 alone" "a c b a c" "$mixed" MASTER_ADDR=fd77::1
transport=tcp
joins "IPv6 loopback" "a a" "tcp tcp" MASTER_ADDR=::1

# mpirun on host a starts ranks on all three: rank 0 finds out by itself which of its addresses the others reach.
addresses 4
cat >"$work/remote" <<SCRIPT
#!/bin/bash
# ssh's place: [options] HOST COMMAND…
while [ "\${1#-}" != "\$1" ]; do shift; done
case \$1 in *.1) holder=${holder[a]} ;; *.2) holder=${holder[b]} ;; *.3) holder=${holder[c]} ;; esac
shift
exec nsenter --target \$holder --net --mount --uts env RINGZERO_HOST=\$holder bash -c "\$*"
SCRIPT
chmod +x "$work/remote"
hosts=10.77.0.1,10.77.0.2,10.77.0.3
inside=(nsenter --target "${holder[a]}" --net --mount --uts)
mpich=("${inside[@]}" mpirun.mpich -launcher ssh -launcher-exec "$work/remote" -hosts $hosts -ppn 1 -n 3 -genv RINGZERO_LOG info)
if command -v mpirun.mpich >/dev/null; then
  works "MPICH on three hosts" "${mpich[@]}" -iface eth0 "$ringzero" bench $quick
  says "MPICH on three hosts" 'rank 1 of 3, started by MPICH; rank 0 is at 10\.77\.0\.1 '
fi
if command -v mpirun.openmpi >/dev/null && has_pmix; then
  works "Open MPI on three hosts" "${inside[@]}" mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent "$work/remote" \
    --host $hosts --mca oob_tcp_if_include eth0 --map-by node -n 3 -x RINGZERO_LOG=info "$ringzero" bench $quick
  says "Open MPI on three hosts" 'rank 1 of 3, started by Open MPI; rank 0 is at 10\.77\.0\.1 '
fi
# Interfaces that look as if they led to containers: rank 0 gives no address of theirs away unless it is told to.
for name in a b c; do on $name ip link set eth0 down && on $name ip link set eth0 name veth0 && on $name ip link set veth0 up; done
if command -v mpirun.mpich >/dev/null; then
  refused "MPICH, veth only" 'rank 0 runs on another host than (other ranks|rank [12]), but its address is 127.0.0.1.* set RINGZERO_INTERFACE' \
    "${mpich[@]}" -iface veth0 "$ringzero" bench $quick
  works "MPICH, veth by name" "${mpich[@]}" -iface veth0 -genv RINGZERO_INTERFACE veth0 "$ringzero" bench $quick
fi

# C10: pretended hosts, on this host's loopback: a job starts under 10 s and has the right result.
# pretends PLACES
pretends() {
  local places=($1) rank pids=() begin=$SECONDS port
  port=$(free_port)
  for rank in "${!places[@]}"; do
    RINGZERO_HOST=${places[rank]} RANK=$rank WORLD_SIZE=${#places[@]} MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      timeout 60 "$ringzero" bench all_reduce -b 100K -e 100K -n 1 -w 1 >"$work/rank$rank" 2>&1 &
    pids+=($!)
  done
  # The line is printed when the communicator is open.
  for _ in $(seq 300); do grep -q '^# Ring' "$work/rank0" && break; sleep 0.1; done
  [ $((SECONDS - begin)) -lt 10 ] || fail "C10 $1: the start took $((SECONDS - begin)) s" "$work/rank0"
  for pid in "${pids[@]}"; do wait "$pid" || fail "C10 $1: a rank failed" "$work/rank0"; done
  good "C10 $1" "$work/rank0"
}
pretends "a a a a a a a b b b b b b b b"
pretends "a a a b b b c c"
pretends "a b c a b c a b"
finish

#!/usr/bin/env bash
# Verbs over a real driver: libibverbs' traffic through Linux' Soft-RoCE, in a guest machine under
# QEMU (tests/rdma/guest.sh).
# ctest: timeout=1200 serial labels=plain
#
#   one_guest    one device: the suites over verbs at 2, 3 and 4 ranks, bench, link, training
#   faults       two wires in one guest: links cut, settings wrong, ranks killed; two rails
#   two_guests   two hosts on one wire: suites across it, verbs beside TCP
set -u
ringzero=$(realpath "${RINGZERO:-build/ringzero}")
build=$(dirname "$ringzero")
here=$(cd "$(dirname "$0")" && pwd)/rdma
failed=0 guest=()
. "$here/guest.sh"
ldd "$ringzero" | grep -q libibverbs || guest_skip "ringzero was built without libibverbs (Debian: apt install libibverbs-dev)"
guest_open "$build/rdma"
guest_programs "$ringzero" "$build"/tests/{verbs_edge_test,verbs_ibv_memory_test,verbs_ibv_gpu_test,ring_collectives_test,ring_direct_test,ring_faults_test} \
  "$(command -v ip)" "$(command -v rdma)"

# job NAME: its files for a guest.
job() { rm -rf "$build/rdma/$1.job" && mkdir "$build/rdma/$1.job" && cp "$here/try.sh" "$here/$1"/* "$build/rdma/$1.job/"; }
# ended NAME CODE: shows what the guest of that name has done.
ended() {
  echo "$1:"
  grep '^ok\|^#\|^ ' "$build/rdma/$1.out"
  [ "$2" = 0 ] && return
  failed=1
  echo "FAILED: $1; the guest's output, console and qemu's messages:"
  cat "$build/rdma/$1".{out,console,err}
}
jobs=${*:-one_guest faults two_guests} # all, or those named
for name in one_guest faults; do
  [[ " $jobs " = *" $name "* ]] || continue
  job $name
  guest_run $name "$build/rdma/$name.job" 500 ""
  ended $name $?
done
if [[ " $jobs " = *" two_guests "* ]]; then
  job two_guests
  wire=$(mktemp -d) # the wire is two datagram sockets; their paths must be short
  for host in 0 1; do
    guest_run host$host "$build/rdma/two_guests.job" 500 "HOST=$host" \
      -netdev dgram,id=wire,local.type=unix,local.path=$wire/$host,remote.type=unix,remote.path=$wire/$((1 - host)) \
      -device virtio-net-pci,netdev=wire,host_mtu=9000,romfile=,mac=52:54:00:00:00:0$host &
    guest[host]=$!
  done
  for host in 0 1; do
    code=0
    wait "${guest[host]}" || code=$?
    ended host$host $code
  done
  rm -rf "$wire"
fi
rm -rf "$build"/rdma/{root,base.cpio,*.job}
exit $failed

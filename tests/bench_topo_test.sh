#!/bin/bash
# `ringzero topo`: this machine, machines from files and from a line of text, several hosts; errors are one line and 2.
# ctest: timeout=60
set -u
. "$(dirname "$0")/harness/program.sh"
machines="$(dirname "$0")/topology"

if "$ringzero" topo 2>&1 | grep -q 'without hwloc'; then
    echo "skipped: built without hwloc"
    exit 77
fi

# shows WORDS: the output of the last run has a line with them.
shows() { grep -qF -- "$1" "$work/out" || fail "no line holds \"$1\" in: $(cat "$work/out")"; }

run topo
shows "channel 0: 0 ►"
grep -qE '^host .*: [0-9]+ package' "$work/out" || fail "no machine: $(cat "$work/out")"

run topo --xml "$machines/dgx.xml"
shows "1 host of 8 ranks: flat, round one ring, one host"
shows "NIC mlx5_7, PCI 0000:a6:00.0, 200 Gb/s, RDMA"
shows "channel 0: 0 ► 1 ► 2 ► 3 ► 4 ► 5 ► 6 ► 7 ► 0"
shows "NVLink, 300 GB/s"
run topo --xml "$machines/asymmetric.xml" --no-gpu --ranks 4
shows "NIC mlx5_1, PCI 0000:59:00.0, 100 Gb/s, RDMA, down"
shows "PU 6-7, NUMA node 1, nearest NIC mlx5_2 (NUMA node), its proxy on PU 6-7"
run topo --synthetic "package:2 numa:1 core:2 pu:2(indexes=0,4,1,5,2,6,3,7)" --ranks 4
shows "rank 1    machine, PU 1,5, NUMA node 0"

printf '# hosts\n\nalpha 8 %s\nbeta 8 %s # the same\n' "dgx.xml" "dgx.xml" >"$work/hosts"
cp "$machines/dgx.xml" "$work"
run topo --hosts "$work/hosts" --json "$work/json"
[ "$(grep -c '^channel ' "$work/out")" -eq 8 ] || fail "expected 8 channels, one a fast NIC"
shows "alpha: enters at rank 1, leaves from rank 0; NIC mlx5_0: PCI switch and PCI switch away"
shows "verbs    network: mlx5_6 of beta, 200 Gb/s ► mlx5_6 of alpha, 200 Gb/s"
shows "2 hosts of 8 ranks: two levels, inside each host and then between hosts, the same number on each"
shows "place 0: 1 by mlx5_1, 200 Gb/s ► 9 by mlx5_1, 200 Gb/s ► 1"
[ "$(grep -oE 'place .*' "$work/out" | grep -oE 'mlx5_[0-9]' | sort | uniq -c | awk '$1 == 2' | wc -l)" -eq 8 ] ||
    fail "in two levels each of a host's 8 ranks has a NIC of its own: $(grep place "$work/out")"
grep -q '"two_level":true,"hosts":2,"fewest_ranks":8' "$work/json" || fail "two levels in $(cat "$work/json")"
[ "$(grep -cE '(verbs|tcp) +network' "$work/out")" -eq 16 ] || fail "8 rings of 2 hosts cross 16 times"
while read -r line; do
    echo "$line" >"$work/line"
    parses "$work/line"
done <"$work/json"
grep -q '"channel":7,"ring":\[6,5,4,3,2,1,0,7,14' "$work/json" || fail "channel 7 in $(tail -1 "$work/json")"
run topo --hosts "$work/hosts" --transport tcp --channels 1
shows "tcp      network"

printf 'a 3 package:2 core:2 pu:1\nb 2 package:1 core:2 pu:1\n' >"$work/mixed"
run topo --hosts "$work/mixed"
shows "channel 0: 0 ► 1 ► 2 ► 3 ► 4 ► 0"
[ "$(grep -c '2 cores, PUs' "$work/out")" -eq 3 ] || fail "packages that share a NUMA node: $(head -20 "$work/out")"
shows "2 ► 3    tcp      network"
shows "2 hosts of 2 to 3 ranks: flat, round one ring, not the same number on each"

refused "no machine that hwloc reads" topo --xml /no/such.xml
head -c 3000 "$machines/dgx.xml" >"$work/cut.xml"
refused "cut.xml is no machine" topo --xml "$work/cut.xml"
refused "describes no machine" topo --synthetic "package:many"
refused "expected one of them" topo --synthetic core:2 --xml "$machines/dgx.xml"
refused "cannot be read" topo --hosts /no/such
refused "the file says how many" topo --hosts "$work/hosts" --ranks 2
refused "--channels is \"0\"" topo --channels 0
refused "is no option" topo dgx.xml
for line in 'a' 'a 2' 'a two core:2' 'a 0 core:2' 'a 5000 core:2' 'a 2 absent.xml' 'a 2 core:'; do
    echo "$line" >"$work/bad"
    refused "bad line 1: " topo --hosts "$work/bad"
done
printf 'a 2 core:2 pu:1\na 2 core:2 pu:1\n' >"$work/twice"
refused "line 2: host a comes twice" topo --hosts "$work/twice"
echo '# nobody' >"$work/none"
refused "has no hosts" topo --hosts "$work/none"

# A machine that is pretended to hwloc decides the ring that ranks really have: dealt out over two nodes, they are gathered.
cores=$(taskset -cp $$ 2>/dev/null | sed 's/.*: //')
if [ "${cores/-/,}" = 0,1 ]; then
    export HWLOC_SYNTHETIC="package:2 numa:1 core:1 pu:1" HWLOC_THISSYSTEM=0
    run bench all_reduce --ranks 2 -b 8 -e 8 -n 1 -w 0 --log info
    grep -q '1/2 info ring: runs in package 1, NUMA node 1, on core 1' "$work/err" || fail "rank 1 is not in node 1: $(cat "$work/err")"
    port=$((20000 + RANDOM % 10000))
    for rank in 0 1 2 3; do
        RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port RINGZERO_LOG=info timeout 40 \
            taskset -c $((rank % 2)) "$ringzero" bench all_reduce -b 8 -e 1K -n 1 -w 0 >"$work/out$rank" 2>&1 &
    done
    wait
    grep -q 'channel 0: ring 0 2 1 3' "$work/out0" || fail "ranks of two nodes by turns: $(cat "$work/out0")"
    grep -q 'Out of bounds values : 0 OK' "$work/out0" || fail "four ranks on two nodes: $(cat "$work/out0")"
else
    echo "not tried: ranks on a pretended machine, which is written for PUs 0-1; found $cores"
fi
exit $failed

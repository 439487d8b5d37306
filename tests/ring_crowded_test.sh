#!/usr/bin/env bash
# Case C14: more ranks than cores. 8 ranks on 2 cores, an all-reduce of 1 MiB: ranks that wait must give their core up. Judged
# beside Open MPI told to yield, in the same minute, by the ratio of the two times, and kindly: no slower than 1.5 times,
# in one of five rounds; a rank that spun through its turns would be tens of times slower.
# ctest: timeout=120 serial labels=plain
#
# Skipped without Open MPI's compiler and mpirun (Debian: libopenmpi-dev openmpi-bin).
set -u
. "$(dirname "$0")/harness/launch.sh"
trap 'rm -rf "$work"' EXIT
source=${RINGZERO_SOURCE:?set RINGZERO_SOURCE to the source tree}
ring_bench=$(dirname "$ringzero")/ring_bench
need_program mpirun.openmpi openmpi-bin
need_program mpicc.openmpi libopenmpi-dev
need_program taskset util-linux
compare=$source/bench/compare
mpicc.openmpi -std=gnu11 -O3 -D_GNU_SOURCE -I"$source" "$compare/mpi_bench.c" "$compare/sweep.c" -o "$work/openmpi" 2>"$work/out" ||
  skip "mpicc.openmpi cannot build bench/compare/mpi_bench.c: $(head -1 "$work/out")"

export TMPDIR=$work
two_cores=(taskset -c "$(taskset -pc $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{ for (i = $1; i <= $NF; i++) print i }' | head -2 | paste -sd,)")
mpirun=(mpirun.openmpi -n 8 --oversubscribe --mca mpi_yield_when_idle 1 --mca pml ob1 --mca btl self,vader
  --mca oob_tcp_if_include lo --mca plm_rsh_agent "$(type -P true)" --bind-to none)
[ "$(id -u)" != 0 ] || mpirun+=(--allow-run-as-root)
points=(--collectives all_reduce --sizes 1M --modes in --ms 400)

# micros COMMAND…: the time of one operation.
micros() { timeout 40 "${two_cores[@]}" "$@" "${points[@]}" 2>"$work/errors" | awk '/^point all_reduce/ { print $5 }'; }

for round in 1 2 3 4 5; do
  ours=$(micros "$ring_bench" --ranks 8 --transport shm)
  theirs=$(micros "${mpirun[@]}" "$work/openmpi")
  [ -n "$ours" ] || { fail "C14: 8 ranks on 2 cores gave no time" "$work/errors"; break; }
  [ -n "$theirs" ] || skip "Open MPI measured nothing here: $(tail -1 "$work/errors")"
  echo "round $round: 8 ranks on 2 cores, 1 MiB: $ours us, Open MPI $theirs us"
  awk -v a="$ours" -v b="$theirs" 'BEGIN { exit !(a <= 1.5 * b) }' && finish
done
[ $failures != 0 ] || fail "C14: slower than 1.5 times Open MPI in every round: do ranks that wait still give their core up?"
finish

#!/usr/bin/env bash
# Ranks started by Open MPI's mpirun, which tells rank 0's address through PMIx.
# ctest: timeout=90 labels=plain
set -u
. "$(dirname "$0")/harness/launch.sh"
trap 'rm -rf "$work"' EXIT
need_program mpirun.openmpi openmpi-bin
has_pmix || skip "the program was built without PMIx (Debian: apt install libpmix-dev)"

export TMPDIR=$work RINGZERO_LOG=info
run=(mpirun.openmpi --oversubscribe --mca oob_tcp_if_include lo --mca plm_rsh_agent "$(type -P true)") # it asks for ssh even when it needs none
[ "$(id -u)" != 0 ] || run+=(--allow-run-as-root)

works "3 ranks" "${run[@]}" -n 3 "$ringzero" bench $quick
says "3 ranks" 'rank 2 of 3, started by Open MPI; rank 0 is at 127\.0\.0\.1'
works "3 ranks over tcp" "${run[@]}" -n 3 "$ringzero" bench $quick --transport tcp
works "1 rank" "${run[@]}" -n 1 "$ringzero" bench $quick
works "1 process that starts 2 ranks" "${run[@]}" -n 1 "$ringzero" bench $quick --ranks 2
says "1 process that starts 2 ranks" 'Rank  1 Pid'
works "MASTER_ADDR over IPv6" "${run[@]}" -n 2 -x MASTER_ADDR=::1 -x MASTER_PORT="$(free_port)" "$ringzero" bench $quick --transport tcp
says "MASTER_ADDR over IPv6" 'rank 0 is at ::1'
works "PMIx alone" "${run[@]}" -n 2 env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE "$ringzero" bench $quick
says "PMIx alone" 'rank 1 of 2, started by PMIx'
refused "--ranks differs" '--ranks is 3 but OMPI_COMM_WORLD_SIZE is 2' "${run[@]}" -n 2 "$ringzero" bench $quick --ranks 3
refused "no server" 'from PMIx, but .*: set MASTER_ADDR and MASTER_PORT' \
  env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=none "$ringzero" bench $quick
RINGZERO_TIMEOUT_MS=1500 refused "a rank that stays away" 'within 1500 ms' \
  "${run[@]}" -n 1 "$ringzero" bench $quick : -n 1 sleep 8
trains "train" "${run[@]}" -n 2 "$ringzero"
unset RINGZERO_LOG
death "a rank killed" "${run[@]}" -n 3 "$ringzero" bench
finish

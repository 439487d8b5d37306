#!/usr/bin/env bash
# Ranks started by MPICH's mpirun, which tells rank 0's address through PMI-1.
# ctest: timeout=90 labels=plain
set -u
. "$(dirname "$0")/harness/launch.sh"
trap 'rm -rf "$work"' EXIT
need_program mpirun.mpich mpich

export RINGZERO_LOG=info ERRORS=$work/errors
run=(mpirun.mpich)
works "3 ranks" "${run[@]}" -n 3 "$ringzero" bench $quick
says "3 ranks" 'rank 2 of 3, started by MPICH; rank 0 is at 127\.0\.0\.1'
works "3 ranks over tcp" "${run[@]}" -n 3 "$ringzero" bench $quick --transport tcp
works "1 rank" "${run[@]}" -n 1 "$ringzero" bench $quick
works "1 process that starts 2 ranks" "${run[@]}" -n 1 "$ringzero" bench $quick --ranks 2
works "MASTER_ADDR by name" "${run[@]}" -n 2 -env MASTER_ADDR localhost -env MASTER_PORT "$(free_port)" "$ringzero" bench $quick
says "MASTER_ADDR by name" 'rank 0 is at localhost'
refused "--ranks differs" '--ranks is 3 but PMI_SIZE is 2' "${run[@]}" -n 2 "$ringzero" bench $quick --ranks 3
refused "no PMI_FD" 'PMI_FD is not set' env PMI_RANK=1 PMI_SIZE=2 "$ringzero" bench $quick
refused "an echo in the server's place" 'PMI-1 over PMI_FD \(descriptor 9\), .* the answer is "cmd=init' \
  env PMI_RANK=1 PMI_SIZE=2 PMI_FD=9 bash -c '"$0" "$@" 9<> <(sleep 1)' "$ringzero" bench $quick
# Into a file: mpirun may end before it has passed on what a failing rank says.
RINGZERO_TIMEOUT_MS=1500 refused "a rank that stays away" '' "${run[@]}" -n 1 \
  sh -c 'exec "$0" "$@" 2>"$ERRORS"' "$ringzero" bench $quick : -n 1 sleep 4
cp "$ERRORS" "$work/out"
says "a rank that stays away" 'mpirun did not answer "cmd=barrier_in" .* within 1500 ms'
trains "train" "${run[@]}" -n 2 "$ringzero"
unset RINGZERO_LOG
death "a rank killed" "${run[@]}" -n 3 "$ringzero" bench
finish

#!/usr/bin/env bash
# run: what needs a GPU, in under five minutes on one: builds for it, runs the CUDA tests on it with several ranks sharing it, compares
# training on it with the host's, and prints figures beside the copy bandwidth that `ringzero bench` measures in the same run.
#
#   tests/gpu/run.sh [FOLDER]     figures go to FOLDER (build-gpu/results) as well: keep them under bench/results/, with date and device
#
# RINGZERO_TEST_DEVICE=cudasim tries the script itself where there is no GPU; its figures then mean nothing.
set -uo pipefail
cd "$(dirname "$0")/../.."
device=${RINGZERO_TEST_DEVICE:-cuda}
build=build-gpu
results=${1:-$build/results}
ringzero=$build/ringzero
failed=0
mkdir -p "$results"

# step NAME SECONDS COMMAND…: its output is kept; a failure shows the end of it, and the rest goes on. Nothing may hang a lent machine.
step() {
  local name=$1 limit=$2 begin=$SECONDS code=0
  shift 2
  timeout -k 5 "$limit" "$@" >"$results/$name.txt" 2>&1 || code=$?
  case $code in
    0) echo "ok      $name, $((SECONDS - begin)) s" ;;
    77) echo "skipped $name: $(tail -n 1 "$results/$name.txt")" ;;
    *) failed=1
      echo "FAILED  $name, exit code $code, after $((SECONDS - begin)) s:"
      tail -n 20 "$results/$name.txt" | sed 's/^/        /' ;;
  esac
}

build() { cmake --preset release -B "$build" >/dev/null && cmake --build "$build" -j "$(nproc)" --target all; }
export -f build
export build RINGZERO_TEST_DEVICE=$device RINGZERO=$PWD/$ringzero RINGZERO_SOURCE=$PWD
if [ "$device" = cuda ]; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >"$results/device.txt" 2>/dev/null ||
    { echo "tests/gpu/run.sh: no GPU answers nvidia-smi"; exit 77; }
  cat "$results/device.txt"
fi
date -u +%Y-%m-%d >>"$results/device.txt"
step build 240 bash -c build
[ -x "$ringzero" ] || exit 1

for test in ring_reduce_cuda_test model_ops_cuda_test optim_adam_cuda_test ring_cuda_test ring_cuda_faults_test ring_direct_test; do
  step "$test" 60 "$build/tests/$test"
done
step training 90 bash tests/shard_cuda_test.sh # the stages, against the host's losses

for ranks in 2 4; do
  for collective in all_reduce reduce_scatter all_gather broadcast; do
    step "bench-$collective-$ranks" 30 "$ringzero" bench $collective --ranks $ranks --device "$device" -b 8 -e 64M -f 8 -n 5 -w 1
  done
done
grep -h '^# Limit\|^# Avg' "$results"/bench-*.txt

largest=(--model gpt2-124m --dtype bfloat16 --batch 16 --seq 1024 --steps 20)
[ "$device" = cuda ] || largest=(--model nano --batch 1 --seq 32 --steps 2)
step train-largest 90 "$ringzero" train --ranks 1 --device "$device" --data README.md "${largest[@]}"
tail -n 30 "$results/train-largest.txt"
exit $failed

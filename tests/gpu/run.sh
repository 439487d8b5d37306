#!/usr/bin/env bash
# run: what needs a GPU, in under five minutes on one: builds for it, runs the CUDA tests on it with several ranks sharing it, compares
# training on it with the host's, and measures: kernels beside a copy and cuBLAS, rings of 2 and 4 processes on the one GPU, and
# the training of gpt2-124m. FOLDER/figures.md has them all.
#
#   tests/gpu/run.sh [FOLDER]     figures go to FOLDER (build-gpu/results) as well: keep them under bench/results/, with date and device
#
# Where build-packed/ is (tests/gpu/pack.sh), its programs are run, and none is built. RINGZERO_TEST_DEVICE=cudasim tries the script itself
# where there is no GPU; its figures then mean nothing.
set -uo pipefail
cd "$(dirname "$0")/../.."
device=${RINGZERO_TEST_DEVICE:-cuda}
build=build-gpu packed=
results=${1:-$build/results}
if [ "$device" = cuda ] && [ -e build-packed/packed.tar.gz ]; then
  build=build-packed packed=1
  tar -xzf build-packed/packed.tar.gz -C build-packed || exit 1
fi
ringzero=$build/ringzero
failed=0
budget=290 # seconds of it all
mkdir -p "$results"
# Each CUDA stream gets a queue of the GPU's, of 8 if nothing is said, and waits for what is ahead of it there. Ranks that share a GPU and
# wait for one another have more streams.
export CUDA_DEVICE_MAX_CONNECTIONS=32

# step NAME SECONDS COMMAND…: its output is kept; a failure shows the end of it, and the rest goes on. Nothing may hang the machine.
step() {
  local name=$1 limit=$2 begin=$SECONDS code=0
  shift 2
  [ "$limit" -le $((budget - begin)) ] || limit=$((budget - begin))
  [ "$limit" -ge 5 ] || { failed=1; echo "left out $name: no time is left"; return; }
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

# Without the toolkit, or with one at another place, CUDA's libraries may be where the loader does not look: with Python's packages, say.
find_libraries() {
  local name at
  for name in $(ldd "$build/libringzero_cuda.so" | awk '/not found/ { print $1 }'); do
    at=$(find /usr /opt /root /home -xdev -name "$name" -print -quit 2>/dev/null)
    [ -n "$at" ] || { echo "tests/gpu/run.sh: $name is nowhere: the CUDA toolkit of that version has it"; return 1; }
    export LD_LIBRARY_PATH=${at%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  done
}
export -f build
export build RINGZERO_TEST_DEVICE=$device RINGZERO=$PWD/$ringzero RINGZERO_SOURCE=$PWD
if [ "$device" = cuda ]; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >"$results/device.txt" 2>/dev/null ||
    { echo "tests/gpu/run.sh: no GPU answers nvidia-smi"; exit 77; }
  cat "$results/device.txt"
fi
date -u +%Y-%m-%d >>"$results/device.txt"
if [ -n "$packed" ]; then
  echo "packed: $(cat $build/version)"
else
  step build 240 bash -c build
fi
[ -x "$ringzero" ] || { echo "tests/gpu/run.sh: where packages cannot be had: tests/gpu/pack.sh, on another machine"; exit 1; }
[ ! -e "$build/libringzero_cuda.so" ] || find_libraries || exit 1

# programs SECONDS NAME…
programs() {
  local limit=$1 name
  shift
  for name; do step "$name" "$limit" "$build/tests/$name"; done
}
programs 40 ring_reduce_cuda_test model_ops_cuda_test optim_adam_cuda_test

# ---- figures ----
sizes=() span=(-b 8 -e 64M -f 8 -n 5 -w 1)
largest=(--model gpt2-124m --dtype bfloat16 --batch 16 --seq 1024 --steps 40)
if [ "$device" != cuda ]; then
  sizes=(tiny) span=(-b 8 -e 4K -f 8 -n 1 -w 0)
  largest=(--model nano --batch 1 --seq 32 --steps 3)
fi
step kernels 60 "$build/kernel_bench" "$device" "${sizes[@]}"
for ranks in 2 4; do
  for collective in all_reduce reduce_scatter all_gather broadcast; do
    step "bench-$collective-$ranks" 30 "$ringzero" bench $collective --ranks $ranks --device "$device" "${span[@]}"
  done
done
step train-largest 60 "$ringzero" train --ranks 1 --device "$device" --data README.md --validate-every 0 "${largest[@]}"

# ---- ranks that share the GPU, and training beside the host's: what takes longest ----
programs 60 ring_cuda_test ring_cuda_graph_test ring_direct_test ring_cuda_faults_test
step kernel-mode 40 env RINGZERO_CUDA_MODE=kernel "$ringzero" bench all_reduce --ranks 2 --device "$device" -b 8 -e 4K -f 8 -n 2 -w 1
RINGZERO_TEST_SECONDS=50 step training 110 bash tests/shard_cuda_test.sh

# cell FILE WORDS: the number before the words in the file's last line that has them.
cell() { sed -n "s|.* \([0-9.e+]*\) $2.*|\1|p" "$results/$1.txt" | tail -n 1; }

rings() {
  local collective ranks
  printf '| ranks on the GPU | collective | bytes | µs | bus bandwidth, GB/s |\n|---:|---|---:|---:|---:|\n'
  for ranks in 2 4; do
    for collective in all_reduce reduce_scatter all_gather broadcast; do
      grep -hE '^ +[0-9]' "$results/bench-$collective-$ranks.txt" | sed -n '1p;$p' |
        awk -v ranks=$ranks -v name=$collective '{ printf "| %d | %s | %s | %s | %s |\n", ranks, name, $1, $6, $8 }'
    done
  done
}

# The share of the GPU's peak that the model's own operations are: of the peak measured here, and of what the vendor says.
training() {
  local rate flops product peak=
  rate=$(cell train-largest tokens/s) flops=$(cell train-largest TFLOP/s)
  product=$(awk -F'|' '/^\| large product/ { print $5 + 0 }' "$results/kernels.txt")
  case $(head -n 1 "$results/device.txt") in *A100*) peak=312 ;; *H100* | *H200*) peak=989 ;; esac
  awk -v rate="$rate" -v flops="$flops" -v product="$product" -v peak="$peak" -v what="${largest[*]}" 'BEGIN {
    printf "| | tokens/s of a GPU | TFLOP/s of the model | of the large product | of the peak that the vendor states |\n|---|---:|---:|---:|---:|\n"
    printf "| %s, one GPU | %s | %s | %.0f %% | %s |\n", what, rate, flops, 100 * flops / product,
      peak == "" ? "" : sprintf("%.0f %%", 100 * flops / peak)
    printf "| llm.c, as published: 8 A100, 524,288 tokens in 300 ms | 218000 | | | 56 %% |\n" }'
}

{
  printf '# Figures of a GPU\n\nMade by `tests/gpu/run.sh`: %s\n\n' "$(paste -sd ' ' "$results/device.txt")"
  [ "$device" = cuda ] || printf 'Of the simulator: they mean nothing.\n\n'
  cat "$results/kernels.txt"
  echo && rings
  echo && training
} >"$results/figures.md"
cat "$results/figures.md"
echo "whole: $SECONDS s"
exit $failed

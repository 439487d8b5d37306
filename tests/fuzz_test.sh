#!/usr/bin/env bash
# Everything that is read from a socket, a shared segment or a file of somebody else, under libFuzzer with
# AddressSanitizer and UndefinedBehaviorSanitizer: each target of tests/fuzz for RINGZERO_FUZZ_SECONDS (4), from the
# stored corpus on. ctest: timeout=300 labels=plain
#
# Skipped without clang and its runtime (Debian: clang libclang-rt-14-dev). A finding is left in the folder that is
# printed:
#   build/tests/fuzz/…: replay it with build/tests/NAME_fuzz FILE
set -u
source=${RINGZERO_SOURCE:?set RINGZERO_SOURCE to the source tree}
build=$(dirname "${RINGZERO:?set RINGZERO to the program}")
seconds=${RINGZERO_FUZZ_SECONDS:-4}
clang=${CLANG:-clang}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

if [ -n "${ASAN_OPTIONS:-}" ] && grep -q '^RINGZERO_SANITIZE:[A-Z]*=..*' "$build/CMakeCache.txt"; then
  echo "skipped: the release build fuzzes, with sanitizers of its own"
  exit 77
fi
flags=(-std=gnu11 -O1 -g -D_GNU_SOURCE -DRINGZERO_SANITIZED -I"$source" -ffp-contract=off -Wall -Wextra -Wno-unused-function
  -fsanitize=address,undefined -fno-sanitize-recover=all $(pkg-config --cflags libcjson openblas libutf8proc))
echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n); int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d == 0 && n == 1; }' >"$work/probe.c"
"$clang" "${flags[@]}" -fsanitize=fuzzer "$work/probe.c" -o "$work/probe" 2>"$work/log" ||
  { echo "skipped: $clang cannot build fuzzers here: $(head -1 "$work/log")"; exit 77; }

libraries=($(pkg-config --libs libcjson openblas libutf8proc) -lz -lpthread -lm)

# The code under test, instrumented; two compilers at a time.
compile() {
  for file in "$@"; do
    while [ "$(jobs -pr | wc -l)" -ge 2 ]; do wait -n; done
    "$clang" "${flags[@]}" -fsanitize=fuzzer-no-link -c "$file" -o "$work/$(basename "$(dirname "$file")")_$(basename "$file" .c).o" &
  done
  wait
}
shopt -s extglob
compile "$source"/{verbs,ring,model,optim,shard}/!(edge_ibv|ibv_device|ibv_gpu|ibv_memory|ibv_queue|rail_ibv|machine_hwloc|*_cuda).c # no verbs, no hwloc, no CUDA
ar rcs "$work/libcode.a" "$work"/*_*.o

failed=0
fuzz() {
  local name=$1
  mkdir -p "$work/$name"
  "$clang" "${flags[@]}" -fsanitize=fuzzer "$source/tests/fuzz/${name}_fuzz.c" "$work/libcode.a" "${libraries[@]}" -o "$work/$name/run" \
    >"$work/$name/log" 2>&1 &&
    mkdir "$work/$name/found" &&
    (cd "$work/$name" && ./run -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -close_fd_mask=3 -verbosity=1 \
      found "$source/tests/fuzz/corpus/$name" >>log 2>&1)
}
names=()
for file in "$source"/tests/fuzz/*_fuzz.c; do names+=("$(basename "$file" _fuzz.c)"); done
pids=()
for i in "${!names[@]}"; do
  [ "$i" -lt 2 ] || wait "${pids[$((i - 2))]}" # two at a time
  fuzz "${names[$i]}" &
  pids+=($!)
done
for i in "${!names[@]}"; do
  name=${names[$i]}
  wait "${pids[$i]}"
  code=$?
  if [ $code -eq 0 ]; then
    runs=$(sed -nE 's/^Done ([0-9]+) runs.*/\1/p' "$work/$name/log")
    echo "$name: ${runs:-no} runs, $(sed -nE 's/.* cov: ([0-9]+) .*/\1/p' "$work/$name/log" | tail -1) edges covered"
    [ "${runs:-0}" -gt 0 ] || failed=1
  else
    kept=$build/tests/fuzz/$name
    mkdir -p "$kept" && cp "$work/$name"/{crash,leak,timeout,oom}-* "$kept" 2>/dev/null
    echo "failed: $name, exit code $code; the input is in $kept"
    tail -40 "$work/$name/log"
    failed=1
  fi
done
exit $failed

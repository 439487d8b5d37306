#!/usr/bin/env bash
# scaling: how close two ranks come to twice one rank's tokens/s when they train nano at a fixed batch per rank, beside what two
# processes of pure matrix products reach against one: the share that the memory and the clock of this machine take anyway.
#
#   bench/compare/scaling.sh [ROUNDS]     after building
#
# Shared machines change their speed by the second, and each core for itself: so a round measures one, two, one, each within
# seconds; ratios are taken within a round, and the median of the rounds is told.
set -eu
cd "$(dirname "$0")/../.."
rounds=${1:-7}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OPENBLAS_NUM_THREADS=1
text=$work/text
seq 1 200000 >"$text" # any bytes will do: the time of a step does not depend on them

# tokens RANKS: tokens/s of one thread a rank that a fifth of 30 steps exceed (the first 5 left out): the machine's fast state. In
# the slow one a core loses a third for seconds, and ranks that wait for each other lose it whenever either core does.
tokens() {
  build/ringzero train --ranks "$1" --threads 1 --data "$text" --steps 30 --batch 8 --seq 128 --sample 0 --validate-every 0 \
    --json "$work/log" >/dev/null
  sed -n 's/.*"step":\([0-9]*\),.*"tokens_per_s":\([0-9.]*\).*/\1 \2/p' "$work/log" | awk '$1 > 5 { print $2 }' | sort -n | awk '{ v[NR] = $1 } END { print v[int(NR * 0.8)] }'
}
gemm() { taskset -c "$1" build/gemm_bench 1 | awk '{ print $2 }'; }
gemm_pair() {
  gemm 0 >"$work/a" &
  gemm 1 >"$work/b"
  wait
  paste "$work/a" "$work/b" | awk '{ print $1 + $2 }'
}
middle() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

for _ in $(seq "$rounds"); do
  one=$(tokens 1) two=$(tokens 2) again=$(tokens 1)
  alone=$(gemm 0) pair=$(gemm_pair) alone2=$(gemm 1)
  awk -v a="$one" -v b="$two" -v c="$again" -v d="$alone" -v e="$pair" -v f="$alone2" 'BEGIN {
    printf "tokens/s %6.0f %6.0f  two ranks %6.0f = %.3f    sgemm GFLOP/s %6.1f %6.1f  two %6.1f = %.3f    scaled %.3f\n",
      a, c, b, b / (a + c), d, f, e, e / (d + f), b / (a + c) / (e / (d + f)) }' | tee -a "$work/rounds"
done
printf 'median: two ranks reach %s of twice one, two processes of sgemm %s: scaled %s\n' \
  "$(sed 's/.*two ranks *[0-9]* = \([0-9.]*\).*/\1/' "$work/rounds" | middle)" \
  "$(sed 's/.*two *[0-9.]* = \([0-9.]*\) *scaled.*/\1/' "$work/rounds" | middle)" \
  "$(sed 's/.*scaled //' "$work/rounds" | middle)"

#!/usr/bin/env bash
# one_core: what of one core a training step uses: model FLOP/s of one rank with one thread beside the peak of OpenBLAS's sgemm, and
# weights of 16 bits beside float32.
#
#   bench/compare/one_core.sh [ROUNDS] [MODEL]     after building; MODEL: mini, gpt2-124m, or both when left out
#
# Shared machines change their speed by the second, so a round measures sgemm, the three dtypes and sgemm again within two minutes,
# every second round backwards; ratios are taken within a round. Rounds add up in build/one_core.tsv (remove it to start anew);
# bench/results/one_core.md is written from it.
#
# Model FLOPs of a token: 6 Ψ, and 6 L T C for attention: forward two products of C columns with the T/2 keys that a token sees on
# average, 2 L T C, and backward twice that. What a step computes a second time (logits, scores) is not counted.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OPENBLAS_NUM_THREADS=1 LC_ALL=C
raw=build/one_core.tsv # model, sgemm in GFLOP/s, tokens/s with float32, bfloat16, float16
dtypes=(float32 bfloat16 float16)
batch=4 seq=256

# The time of a step does not depend on the tokens: digits as text, and two of them as one id of GPT-2 in a shard.
seq 1 50000 >"$work/text"
head -c 3000 "$work/text" >"$work/text.held"
{ printf '\x88\xd8\x34\x01\x01\0\0\0\xa0\x86\x01\0'; head -c 1012 /dev/zero; head -c 200000 "$work/text"; } >"$work/shard.bin"
{ printf '\x88\xd8\x34\x01\x01\0\0\0\xe8\x03\0\0'; head -c 1012 /dev/zero; head -c 2000 "$work/text"; } >"$work/held.bin"

# tokens MODEL DTYPE: tokens/s of the median step, the first one left out
tokens() {
  local data=(--steps 4 --data "$work/shard.bin" --validation "$work/held.bin")
  [ "$1" = mini ] && data=(--steps 20 --data "$work/text" --validation "$work/text.held")
  taskset -c 0 build/ringzero train --threads 1 --model "$1" --dtype "$2" --batch $batch --seq $seq "${data[@]}" --validate-every 0 \
    --json "$work/steps" >"$work/shown"
  sed -n 's/.*"tokens_per_s":\([0-9.]*\),.*/\1/p' "$work/steps" | tail -n +2 | sort -n | awk '{ v[NR] = $1 } END { print v[int(NR / 2) + 1] }'
}
peak() { taskset -c 0 build/gemm_bench 1 2048 | awk '{ print $2 }'; }

measure() {
  local round model i order before after
  for ((round = 1; round <= $1; round++)); do
    for model in $2; do
      order="0 1 2"
      [ $(($(grep -c "^$model" "$raw" || true) % 2)) -eq 0 ] || order="2 1 0"
      before=$(peak)
      for i in $order; do found[i]=$(tokens "$model" "${dtypes[i]}"); done
      after=$(peak)
      printf '%s\t%s\t%s\t%s\t%s\n' "$model" "$(awk "BEGIN { print ($before > $after ? $before : $after) }")" "${found[@]}" | tee -a "$raw"
    done
  done
}

# column EXPRESSION MODEL FORMAT: the median over rounds, and the smallest and the largest
column() {
  awk -v m="$2" "\$1 == m { print $1 }" "$raw" | sort -n | awk -v f="$3" '{ v[NR] = $1 } END {
    printf f " (" f " … " f ")", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2, v[1], v[NR] }'
}

report() {
  local model layers channels elements megaflops
  echo "# One core"
  echo
  echo "$(date +%F), one core of $(nproc) ($(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)), one rank with one thread, $batch x $seq tokens;"
  echo "made by \`bench/compare/one_core.sh\`. sgemm: square products of 2048 with OpenBLAS, the better of before and after a round."
  echo "Medians over rounds; in brackets the smallest and the largest. Ratios are taken within a round."
  for model in $(cut -f 1 "$raw" | sort -u); do
    layers=12 channels=768 elements=124439808
    [ "$model" = mini ] && layers=6 channels=384 elements=10844160
    megaflops=$(awk "BEGIN { print (6 * $elements + 6 * $layers * $seq * $channels) / 1e6 }")
    printf '\n## %s, %.1f model MFLOP a token, %s rounds\n\n' "$model" "$megaflops" "$(grep -c "^$model" "$raw")"
    echo "| | |"
    echo "|---|---|"
    echo "| sgemm, GFLOP/s | $(column '$2' "$model" %.1f) |"
    echo "| float32, tokens/s | $(column '$3' "$model" %.1f) |"
    echo "| float32, model GFLOP/s | $(column "\$3 * $megaflops / 1000" "$model" %.1f) |"
    echo "| float32, of sgemm | $(column "100 * \$3 * $megaflops / 1000 / \$2" "$model" %.1f%%) |"
    echo "| bfloat16, tokens/s of float32's | $(column '$4 / $3' "$model" %.3f) |"
    echo "| float16, tokens/s of float32's | $(column '$5 / $3' "$model" %.3f) |"
  done
}

touch "$raw"
measure "${1:-5}" "${2:-mini gpt2-124m}"
report | tee bench/results/one_core.md

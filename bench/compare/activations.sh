#!/usr/bin/env bash
# activations: what it costs in speed to keep less of a block's activations: tokens/s of two ranks that share tensors (--tensor 2), with
# one thread each, for --checkpoint-activations none, full, partitioned (P_a) and offload (P_a+cpu), at a fixed batch.
#
#   bench/compare/activations.sh [ROUNDS] [MODEL]     after building; MODEL: nano, mini, or both when left out
#
# Shared machines change their speed by the second, so a round measures the four one after another, every second round backwards, and a ratio
# is taken within a round. Rounds add up in build/activations.tsv (remove it to start anew); bench/results/activations.md is written from it.
set -eu
cd "$(dirname "$0")/../.."
rounds=${1:-5}
models=${2:-nano mini}
raw=build/activations.tsv
text=$(mktemp)
few=$(mktemp)
trap 'rm -f "$text" "$few"' EXIT
export OPENBLAS_NUM_THREADS=1
seq 1 200000 >"$text" # any bytes will do: the time of a step does not depend on them
head -c 3000 "$text" >"$few" # to validate on: a run ends with that
touch "$raw"
keeps=(none full partitioned offload)

# tokens MODEL KEEP: the median step's
tokens() {
  local shape="--batch 8 --seq 128 --steps 30"
  [ "$1" = mini ] && shape="--batch 4 --seq 256 --steps 5"
  # shellcheck disable=SC2086
  build/ringzero train --ranks 2 --threads 1 --tensor 2 --model "$1" --checkpoint-activations "$2" $shape --data "$text" \
    --validate-every 0 --validation "$few" | sed -n 's/^# median of .* ms, \([0-9]*\) tokens.*/\1/p'
}

for ((round = 1; round <= rounds; round++)); do
  for model in $models; do
    order="0 1 2 3"
    [ $((round % 2)) -eq 0 ] && order="3 2 1 0"
    for keep in $order; do found[keep]=$(tokens "$model" "${keeps[keep]}"); done
    printf '%s\t%s\t%s\t%s\t%s\n' "$model" "${found[@]}" | tee -a "$raw"
  done
done

# median COLUMN-EXPRESSION MODEL FORMAT
median() { awk -v m="$2" "\$1 == m { print $1 }" "$raw" | sort -n | awk -v f="$3" '{ v[NR] = $1 } END { printf f, NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
spread() { awk -v m="$2" "\$1 == m { print $1 }" "$raw" | sort -n | awk '{ v[NR] = $1 } END { printf "%.2f … %.2f", v[1], v[NR] }'; }

{
  echo "# The price of keeping less of the activations"
  echo
  echo "$(date +%F), $(nproc) cores ($(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)), two ranks that share tensors, one thread each, over shared memory,"
  echo "float32; made by \`bench/compare/activations.sh\`. tokens/s: median over rounds of the median step. Ratio to full, which is what P_a stands on:"
  echo "median of the rounds' own ratios; in brackets the smallest and the largest."
  for model in $(cut -f 1 "$raw" | sort -ur); do
    shape="8 x 128"
    [ "$model" = mini ] && shape="4 x 256"
    echo
    echo "## $model, $shape tokens, $(grep -c "^$model" "$raw") rounds"
    echo
    echo "| --checkpoint-activations | tokens/s | of full |"
    echo "|---|---|---|"
    for keep in 0 1 2 3; do
      echo "| ${keeps[keep]} | $(median "\$$((keep + 2))" "$model" %.0f) | $(median "\$$((keep + 2)) / \$3" "$model" %.3f) ($(spread "\$$((keep + 2)) / \$3" "$model")) |"
    done
  done
} >bench/results/activations.md
sed -n '6,$p' bench/results/activations.md

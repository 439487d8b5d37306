#!/usr/bin/env bash
# stages: what a ZeRO stage costs in speed: tokens/s of stages 0, 1, 2 and 3, of two ranks with one thread each, for nano at 8 x 128 and
# mini (10.8 M parameters) at 4 x 256 tokens a rank.
#
#   bench/compare/stages.sh [ROUNDS] [MODEL]     after building; MODEL: nano, mini, or both when left out
#
# Shared machines change their speed by the second, so a round measures the stages one after another, every second round backwards, and a
# ratio is taken within a round. Rounds add up in build/stages.tsv (remove it to start anew); bench/results/stages.md is written from it.
set -eu
cd "$(dirname "$0")/../.."
rounds=${1:-5}
models=${2:-nano mini}
raw=build/stages.tsv
text=$(mktemp)
few=$(mktemp)
trap 'rm -f "$text" "$few"' EXIT
export OPENBLAS_NUM_THREADS=1
seq 1 200000 >"$text" # any bytes will do: the time of a step does not depend on them
head -c 3000 "$text" >"$few" # to validate on: a run ends with that
touch "$raw"

# tokens MODEL STAGE: the median step's, of both ranks together
tokens() {
  local shape="--batch 8 --seq 128 --steps 40"
  [ "$1" = mini ] && shape="--batch 4 --seq 256 --steps 5"
  # shellcheck disable=SC2086
  build/ringzero train --ranks 2 --threads 1 --model "$1" --stage "$2" $shape --data "$text" --validate-every 0 \
    --validation "$few" | sed -n 's/^# median of .* ms, \([0-9]*\) tokens.*/\1/p'
}

for ((round = 1; round <= rounds; round++)); do
  for model in $models; do
    order="0 1 2 3"
    [ $((round % 2)) -eq 0 ] && order="3 2 1 0"
    for stage in $order; do found[stage]=$(tokens "$model" "$stage"); done
    printf '%s\t%s\t%s\t%s\t%s\n' "$model" "${found[@]}" | tee -a "$raw"
  done
done

# median COLUMN-EXPRESSION MODEL FORMAT
median() { awk -v m="$2" "\$1 == m { print $1 }" "$raw" | sort -n | awk -v f="$3" '{ v[NR] = $1 } END { printf f, NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
spread() { awk -v m="$2" "\$1 == m { print $1 }" "$raw" | sort -n | awk '{ v[NR] = $1 } END { printf "%.2f … %.2f", v[1], v[NR] }'; }

{
  echo "# The price of a stage"
  echo
  echo "$(date +%F), $(nproc) cores ($(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)), two ranks with one thread each over shared memory, float32;"
  echo "made by \`bench/compare/stages.sh\`. tokens/s of both ranks: median over rounds of the median step. Ratio to stage 0: median of the"
  echo "rounds' own ratios; in brackets the smallest and the largest."
  for model in $(cut -f 1 "$raw" | sort -ur); do
    shape="8 x 128"
    [ "$model" = mini ] && shape="4 x 256"
    echo
    echo "## $model, $shape tokens a rank, $(grep -c "^$model" "$raw") rounds"
    echo
    echo "| stage | tokens/s | of stage 0 |"
    echo "|---|---|---|"
    for stage in 0 1 2 3; do
      echo "| $stage | $(median "\$$((stage + 2))" "$model" %.0f) | $(median "\$$((stage + 2)) / \$2" "$model" %.3f) ($(spread "\$$((stage + 2)) / \$2" "$model")) |"
    done
  done
} >bench/results/stages.md
sed -n '6,$p' bench/results/stages.md

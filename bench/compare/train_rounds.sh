# train_rounds: sourced by stages.sh and activations.sh: what one option of `ringzero train` costs in speed, at each of its settings: tokens/s
# of two ranks with one thread each, for nano at 8 x 128 and mini (10.8 M parameters) at 4 x 256 tokens a rank.
#
# Shared machines change their speed by the second, so a round measures the settings one after another, every second round backwards, and a
# ratio is taken within a round. Rounds add up in build/NAME.tsv (remove it to start anew); bench/results/NAME.md is written from it.
#
#   name=stages option=--stage settings=(0 1 2 3) base=0 fixed=() heading=… about=… per="a rank"
#   measure ROUNDS "MODEL…" && report
rounds_folder=$(mktemp -d)
trap 'rm -rf "$rounds_folder"' EXIT
export OPENBLAS_NUM_THREADS=1
seq 1 200000 >"$rounds_folder/text"                                # any bytes will do: the time of a step does not depend on them
head -c 3000 "$rounds_folder/text" >"$rounds_folder/validation"    # a run ends with that

# tokens MODEL SETTING: the median step's, of both ranks together
tokens() {
  local shape="--batch 8 --seq 128 --steps 40"
  [ "$1" = mini ] && shape="--batch 4 --seq 256 --steps 5"
  # shellcheck disable=SC2086
  build/ringzero train --ranks 2 --threads 1 "${fixed[@]}" --model "$1" "$option" $2 $shape --data "$rounds_folder/text" \
    --validate-every 0 --validation "$rounds_folder/validation" | sed -n 's/^# median of .* ms, \([0-9]*\) tokens.*/\1/p'
}

measure() {
  local round model i order
  raw=build/$name.tsv
  touch "$raw"
  for ((round = 1; round <= $1; round++)); do
    for model in $2; do
      order=$(seq 0 $((${#settings[@]} - 1)))
      [ $((round % 2)) -eq 1 ] || order=$(tac <<<"$order")
      for i in $order; do found[i]=$(tokens "$model" "${settings[i]}"); done
      (IFS=$'\t'; echo "$model"$'\t'"${found[*]}") | tee -a "$raw"
    done
  done
}

# sorted COLUMN-EXPRESSION MODEL
sorted() { awk -v m="$2" "\$1 == m { print $1 }" "$raw" | sort -n; }
median() { sorted "$1" "$2" | awk -v f="$3" '{ v[NR] = $1 } END { printf f, NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
spread() { sorted "$1" "$2" | awk '{ v[NR] = $1 } END { printf "%.2f … %.2f", v[1], v[NR] }'; }

report() {
  local model shape i column
  {
    printf '# %s\n\n' "$heading"
    echo "$(date +%F), $(nproc) cores ($(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)), two ranks $about"
    echo "with one thread each over shared memory, float32; made by \`bench/compare/$name.sh\`. tokens/s of both ranks: median over rounds of the"
    echo "median step. Ratio to ${settings[base]}: median of the rounds' own ratios; in brackets the smallest and the largest."
    for model in $(cut -f 1 "$raw" | sort -ur); do
      shape="8 x 128"
      [ "$model" = mini ] && shape="4 x 256"
      printf '\n## %s, %s tokens %s, %s rounds\n\n' "$model" "$shape" "$per" "$(grep -c "^$model" "$raw")"
      printf '| %s | tokens/s | of %s |\n|---|---|---|\n' "$option" "${settings[base]}"
      for i in "${!settings[@]}"; do
        column=\$$((i + 2))
        echo "| ${settings[i]} | $(median "$column" "$model" %.0f) | $(median "$column / \$$((base + 2))" "$model" %.3f) ($(spread "$column / \$$((base + 2))" "$model")) |"
      done
    done
  } >"bench/results/$name.md"
  sed -n '6,$p' "bench/results/$name.md"
}

#!/usr/bin/env bash
# cuda_registers: what nvcc gives every kernel on every GPU that is built for: registers, spilled bytes, shared memory.
#
#   bench/compare/cuda_registers.sh [ARCHITECTURE…]     75 80 86 89 90 100 120 when left out; minutes. CUDACXX: nvcc, when it is not on the path
#
# No GPU is needed. The flags are those of verbs/cuda.cmake, warnings are errors; the PTX is that of tests/cuda_nvcc_test.sh. bench/results/cuda_registers.md is written. Instances of a
# kernel for several dtypes and vectors are one row: the largest number of any.
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- 75 80 86 89 90 100 120
nvcc=${CUDACXX:-nvcc}
command -v "$nvcc" >/dev/null || { echo "cuda_registers: $nvcc was not found; set CUDACXX to nvcc of CUDA 12 or later" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
codes=()
for architecture in "$@"; do
  ptx=90
  [ "$architecture" -ge 90 ] || ptx=80
  [ "$architecture" -ge 80 ] || ptx=$architecture
  codes+=("-gencode=arch=compute_$ptx,code=sm_$architecture")
done
for file in verbs/*.cu ring/*.cu model/*.cu optim/*.cu; do
  [ -e "$file" ] || continue
  echo "cuda_registers: $file" >&2
  "$nvcc" -std=c++17 -O3 --fmad=false -I. -Xptxas -v -Werror all-warnings -Xcompiler=-Wall,-Wextra "${codes[@]}" -c "$file" \
    -o "$work/object.o" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  c++filt <"$work/log" | sed "s|^|$file |" >>"$work/all"
done

# One line per instance: file, kernel, architecture, registers, spilled bytes, shared bytes.
instances() {
  awk -v q="'" '
    function base(text) { # void name<…>(…): a loop over an operation is called by the operation
      sub(/^void /, "", text)
      if (text ~ /^(flat|rows)_kernel</) { sub(/^[a-z_]*<[0-9]+, /, "", text); sub(/[<>(].*/, "", text); return text }
      engine = match(text, /(fma|mma)_engine<[^>]*>/) ? substr(text, RSTART, RLENGTH) : ""
      sub(/[<(].*/, "", text)
      if (engine == "") return text
      width = engine; gsub(/[^0-9,]/, "", width); split(width, part, ",")
      return text " (" substr(engine, 1, 3) ", " (engine ~ /, 128/ ? 128 : 64) " columns)"
    }
    /Compiling entry function/ {
      name = $0; sub(".*Compiling entry function " q, "", name)
      arch = name; sub(".*" q " for " q "sm_", "", arch); sub(q ".*", "", arch)
      name = base(name)
    }
    /bytes spill stores/ { spill = $0; sub(/ bytes spill stores.*/, "", spill); sub(/.* /, "", spill) }
    /Used [0-9]+ registers/ {
      registers = $0; sub(/.*Used /, "", registers); sub(/ registers.*/, "", registers)
      shared = 0
      if ($0 ~ /bytes smem/) { shared = $0; sub(/ bytes smem.*/, "", shared); sub(/.* /, "", shared) }
      print $1 "\t" name "\t" arch "\t" registers "\t" spill "\t" shared
    }' "$work/all"
}

{
  echo "# Registers of the kernels"
  echo
  echo "$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/nvcc \1/p'), made by \`bench/compare/cuda_registers.sh\`; nothing here has run. The largest of a"
  echo "kernel's instances; spilled: bytes stored to local memory; shared: static bytes, dynamic ones are in the heads of the files."
  echo
  printf '| file | kernel | instances |'
  for architecture in "$@"; do printf ' sm_%s |' "$architecture"; done
  printf ' spilled | shared |\n|---|---|---|'
  for _ in "$@"; do printf -- '---|'; done
  printf -- '---|---|\n'
  instances | awk -F '\t' -v list="$*" '
    { key = $1 "\t" $2; if (!(key in spill)) { order[++kernels] = key; spill[key] = 0; shared[key] = 0 }
      at = key SUBSEP $3; count[at]++
      if ($4 > most[at]) most[at] = $4
      if ($5 > spill[key]) spill[key] = $5
      if ($6 > shared[key]) shared[key] = $6 }
    END {
      n = split(list, arch, " ")
      for (k = 1; k <= kernels; k++) {
        key = order[k]; split(key, part, "\t")
        line = "| " part[1] " | " part[2] " | " count[key SUBSEP arch[1]] " |"
        for (a = 1; a <= n; a++) line = line " " most[key SUBSEP arch[a]] " |"
        print line " " spill[key] " | " shared[key] " |"
      }
    }'
} >"$work/table"
mv "$work/table" bench/results/cuda_registers.md

#!/usr/bin/env bash
# Every .cu as a GPU gets it: compiled by nvcc, warnings as errors, and linked with the host code of the modules to the CUDA
# runtime and cuBLAS; then loaded where there is no GPU.
# ctest: timeout=900 serial labels=plain
#
#   compile   sm_75, which has no products of bfloat16; sm_80, and of the same PTX sm_86 and sm_89; sm_90, and of the same PTX
#             what is newer that the toolkit knows: as many passes of the compiler as kernel.cuh tells apart, and one more
#   bounds    every __global__ says __launch_bounds__, or a block of it may find no registers
#
# CUDA_ARCHITECTURES="90" compiles for that alone. nvcc optimises little here, which is four times as quick; CUDA_OPTIMISE=1: as the
# module is built, and few registers of a kernel may go to memory then (tests/cuda_spills_test.sh).
set -u
shopt -s nullglob
build=$(dirname "${RINGZERO:?set RINGZERO to the program}")
source=${RINGZERO_SOURCE:?set RINGZERO_SOURCE to the source tree}
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
headers=$(cached RINGZERO_CUDA_HEADERS)
for nvcc in "$(cached CUDAToolkit_NVCC_EXECUTABLE)" "${headers%/include}/bin/nvcc" "$(command -v nvcc)"; do [ -x "$nvcc" ] && break; done
[ -x "$nvcc" ] || { echo "skipped: nvcc was not found"; exit 77; }
work=$build/nvcc_test${CUDA_OPTIMISE:+_optimised} # kept: what has not changed is not compiled again
mkdir -p "$work"
cd "$source" || exit 1
failed=0

fail() {
  echo "failed: $*"
  failed=1
}

# bounds
unbounded=$(perl -0ne 'while (/__global__\s+void\s+(?!__launch_bounds__)(\S+)/g) { print "$ARGV: $1\n" }' {verbs,ring,model,optim}/*.cu{,h} tests/cudasim/*.cu 2>/dev/null)
[ -z "$unbounded" ] || fail "kernels without __launch_bounds__: $unbounded"

# compile
architectures=${CUDA_ARCHITECTURES:-}
known=" $("$nvcc" --list-gpu-code | sed 's/sm_//' | tr '\n' ' ')"
targets=()
if [ -n "$architectures" ]; then
  for number in $architectures; do targets+=("-gencode=arch=compute_$number,code=sm_$number"); done
else
  newer=
  for number in 100 120; do [[ $known != *" $number "* ]] || newer+=",sm_$number"; done
  targets=(-gencode=arch=compute_75,code=sm_75 "-gencode=arch=compute_80,code=[sm_80,sm_86,sm_89]" "-gencode=arch=compute_90,code=[sm_90$newer]")
fi
launcher=$(command -v ccache)
quick=()
[ -n "${CUDA_OPTIMISE:-}" ] || ! "$nvcc" --help | grep -q -- --Ofast-compile || quick=(--Ofast-compile=max)
flags=(-std=c++17 -O3 "${quick[@]}" --fmad=false -lineinfo "-I$source" -Werror all-warnings -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Werror --resource-usage)
# An object is as new as its sources, the headers among them, and was made for the same targets.
compile() {
  local file=$1 object=$work/${1//\//_}.o
  shift
  [[ $file != tests/* ]] || set -- "$@" -Xptxas=--suppress-stack-size-warning # one of them recurses, as a bug
  if [ -s "$object" ] && [ "$(cat "$object.for" 2>/dev/null)" = "$*" ] &&
    [ -z "$(find {verbs,ring,model,optim,tests/cudasim} -maxdepth 1 \( -name '*.h' -o -name '*.cuh' -o -path "$file" \) -newer "$object")" ]; then
    return 0
  fi
  $launcher "$nvcc" "$@" -c "$file" -o "$object" >"$object.log" 2>&1 && echo "$*" >"$object.for" && return 0
  rm -f "$object"
  grep -v 'ptxas info\|bytes stack frame\|^$' "$object.log"
  return 1
}
export -f compile
export work nvcc launcher
files=$(echo {verbs,ring,model,optim}/*.cu tests/cudasim/*.cu)
started=$SECONDS
for file in $files; do printf '%s\0' "$file"; done |
  xargs -0 -P "$(nproc)" -I{} bash -c 'compile "$@" || { echo "failed: nvcc $1"; exit 1; }' _ {} "${flags[@]}" "${targets[@]}" || failed=1
echo "nvcc: $(echo "$files" | wc -w) files in $((SECONDS - started)) s"

# spills
if [ -n "${CUDA_OPTIMISE:-}" ]; then
  most=128 # bytes stored by a thread; bench/results/cuda_registers.md has those of each kernel
  spills=$(awk -v most=$most '/bytes spill stores/ { split($0, word, ", "); if (word[2] + 0 > most) print FILENAME ": " $0 }' "$work"/*.o.log)
  [ -z "$spills" ] || fail "more than $most bytes of registers go to memory: $spills"
fi

# link, and load where no GPU is
libraries=${nvcc%/bin/nvcc}/lib64
objects=()
for file in $files; do [[ $file = tests/* ]] || objects+=("$work/${file//\//_}.o"); done
for file in {verbs,ring,model,optim}/*_cuda.c; do
  object=$work/${file//\//_}.o
  "${CC:-cc}" -std=gnu11 -O2 -fPIC -fvisibility=hidden -D_GNU_SOURCE '-DRINGZERO_PLUGIN_NAME="cuda"' -I. -isystem "$headers" -Werror -Wall -Wextra -c "$file" -o "$object" ||
    fail "$file"
  objects+=("$object")
done
"${CXX:-c++}" -shared -Wl,-z,defs "${objects[@]}" -o "$work/libringzero_cuda.so" -L"$libraries" -lcudart -lcublas -lcublasLt -lm -lpthread "-Wl,-rpath,$libraries" ||
  fail "the module does not link"
said=$(RINGZERO_PLUGIN_DIR=$work "$RINGZERO" bench all_reduce --ranks 1 --device cuda -b 8 -e 8 2>&1)
code=$?
if [ "$code" = 0 ]; then
  echo "a GPU: $(echo "$said" | grep -c float) line of a benchmark"
elif [ "$(echo "$said" | grep -c .)" != 1 ] || ! echo "$said" | grep -q "device host"; then
  fail "without a GPU: expected one line with the advice --device host, found: $said"
fi
[ "$failed" = 0 ]

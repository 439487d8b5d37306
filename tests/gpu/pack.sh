#!/usr/bin/env bash
# pack: builds what tests/gpu/run.sh runs where there is no GPU, for a machine that has one and CUDA's libraries, but neither the
# packages that a build needs nor a network to get them by. Taken there with the source tree, build-packed/ is what run.sh runs.
#
#   tests/gpu/pack.sh [ARCHITECTURES]     compute capabilities, "90" (H100, H200) if not said; needs the CUDA toolkit
#
#   build-packed/packed.tar.gz   ringzero kernel_bench libringzero_cuda.so tests/ version
#                                lib/: OpenBLAS, cJSON, …, which programs find by their RPATH; not the C library, not CUDA's
set -euo pipefail
cd "$(dirname "$0")/../.."
architectures=${1:-90}
build=build-pack packed=build-packed
tests=(ring_reduce_cuda_test model_ops_cuda_test optim_adam_cuda_test ring_cuda_test ring_cuda_graph_test ring_cuda_faults_test ring_direct_test)

# RPATH, not RUNPATH: libraries find theirs by it too.
cmake --preset release -B "$build" -DRINGZERO_CUDA_ARCHITECTURES="$architectures" '-DCMAKE_BUILD_RPATH=$ORIGIN/lib;$ORIGIN/../lib' \
  -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags >/dev/null
cmake --build "$build" --target ringzero kernel_bench ringzero_cuda "${tests[@]}"

rm -rf "$packed"
mkdir "$packed"
into=$(mktemp -d "$packed/XXXXXX")
mkdir "$into/tests" "$into/lib"
for file in ringzero kernel_bench libringzero_cuda.so "${tests[@]/#/tests/}"; do strip --strip-debug -o "$into/$file" "$build/$file"; done
ldd "$into"/{ringzero,kernel_bench,tests/*} | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+)\.so' | while read -r library; do
  cp -L "$library" "$into/lib/"
done
echo "$(git describe --always --dirty 2>/dev/null || echo 'unknown source'), compute capability $architectures" >"$into/version"
tar -czf "$packed/packed.tar.gz" -C "$into" .
echo "$packed: $(du -sm "$packed/packed.tar.gz" | cut -f1) MiB, $(cat "$into/version")"
rm -r "$into"

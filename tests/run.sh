#!/usr/bin/env bash
# run: installs what the tests need (apt), builds, and runs them all: the release build, then what is concurrent or parses again
# under ThreadSanitizer and AddressSanitizer + UndefinedBehaviorSanitizer.
#
#   tests/run.sh            everything; about 40 minutes on two cores
#   tests/run.sh quick      the release build only; about 12 minutes
#   tests/run.sh long       the slow extras too (ctest label long)
#   RINGZERO_PRESETS="release asan" tests/run.sh     these presets only
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-all}
case $mode in all | quick | long) ;; *) echo "tests/run.sh: mode is \"$mode\"; expected all, quick or long" >&2; exit 2 ;; esac
. bench/packages.sh
launcher_packages=(openmpi-bin mpich slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins libpmix-dev iproute2)
rdma_packages=(libibverbs-dev ibverbs-providers qemu-system-x86 busybox-static cpio xz-utils)
need "${build_packages[@]}" "${rdma_packages[@]}" libc6-dev perl python3-minimal procps util-linux hostname clang libclang-rt-14-dev g++ "${launcher_packages[@]}"

presets=${RINGZERO_PRESETS:-release asan tsan}
[ "$mode" != quick ] || presets=release
slow=long
[ "$mode" != long ] || slow=
for preset in $presets; do
  echo "== $preset: configure and build"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset"
done
failed=0
for preset in $presets; do
  echo "== $preset: test"
  skip=$slow
  [ "$preset" = release ] || skip=${skip:+$skip|}plain # a sanitizer would add nothing there
  ctest --preset "$preset" ${skip:+-LE "$skip"} --no-tests=error || failed=1
done
exit $failed

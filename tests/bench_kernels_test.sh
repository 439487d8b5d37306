#!/usr/bin/env bash
# kernel_bench runs every kernel that it times, on the host and, where it is built, on the simulator; its times mean nothing there.
# ctest: timeout=60 labels=plain
set -u
. "$(dirname "$0")/harness/program.sh"
bench=$(dirname "$ringzero")/kernel_bench

# rows_of DEVICE: both tables are complete, and every figure is a number above zero.
rows_of() {
    "$bench" "$1" tiny >"$work/out" 2>"$work/err" || { fail "$1: exit code $?: $(cat "$work/err")"; return; }
    [ "$(grep -c '^| ' "$work/out")" -eq 25 ] || fail "$1: $(grep -c '^| ' "$work/out") rows, expected 25: $(cat "$work/out")"
    awk -F'|' '/^\| what|^\|---/ { next } /^\|/ { for (i = 3; i < NF - 1; i++) if (!($i + 0 > 0)) exit 1 }' "$work/out" ||
        fail "$1: a figure is not above zero: $(cat "$work/out")"
}

rows_of host
[ ! -e "$(dirname "$ringzero")/libringzero_cudasim.so" ] || rows_of cudasim
"$bench" nothing 2>"$work/err" && fail "a device that is not there is accepted"
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "more than a line: $(cat "$work/err")"
exit $failed

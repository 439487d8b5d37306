#!/bin/bash
# Every program's manual: its examples are not torn where a terminal ends, so that they can be pasted; what the README
# says to type has no option that the manual lacks; and CUDA is offered by those programs alone that do not refuse it.
set -u
. "$(dirname "$0")/harness/program.sh"
readme=${RINGZERO_SOURCE:?set RINGZERO_SOURCE to the source tree}/README.md

run --help
programs=$(sed -n 's/^  \([a-z]\{1,\}\) .*/\1/p' "$work/out" | grep -v '^ringzero$')
[ "$(wc -w <<<"$programs")" -ge 10 ] || fail "ringzero --help lists \"$programs\""
for program in $programs; do
    run "$program" --help
    sed -n '/^Examples\{0,1\}:$/,$p' "$work/out" >"$work/narrow"
    [ -s "$work/narrow" ] || fail "$program --help has no example"
    ARGP_HELP_FMT=rmargin=300 "$ringzero" "$program" --help | sed -n '/^Examples\{0,1\}:$/,$p' >"$work/wide"
    cmp -s "$work/narrow" "$work/wide" || fail "$program --help tears its examples: $(cat "$work/narrow")"

    "$ringzero" "$program" --device cuda >"$work/cuda" 2>&1
    grep -q 'works on host memory alone' "$work/cuda" && refuses=yes || refuses=no
    grep -qi cuda <(sed -n '/--device/,/--json/p; /--transport/,/--help/p' "$work/out") && offers=yes || offers=no
    [ $refuses != $offers ] || fail "$program refuses CUDA: $refuses, its manual offers it: $offers"

    # One line of the README a command; a description follows behind at least two spaces, a table's cell behind `.
    grep -oE "ringzero $program .*" "$readme" | sed -E 's/  .*|`.*//' >"$work/typed"
    for option in $(grep -oE -- ' --[a-z][a-z0-9-]*' "$work/typed" | sort -u); do
        grep -qE -- "$option(=|,|\[| |$)" "$work/out" || fail "the README has $program $option, --help has not"
    done
done
exit $failed

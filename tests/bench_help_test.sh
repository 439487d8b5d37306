#!/bin/bash
# Every program's manual: its examples are not torn where a terminal ends, so that they can be pasted; and what
# the README says to type has no option that the manual lacks.
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

    # One line of the README a command; a description follows behind at least two spaces, a table's cell behind `.
    grep -oE "ringzero $program .*" "$readme" | sed -E 's/  .*|`.*//' >"$work/typed"
    for option in $(grep -oE -- ' --[a-z][a-z0-9-]*' "$work/typed" | sort -u); do
        grep -qE -- "$option(=|,|\[| |$)" "$work/out" || fail "the README has $program $option, --help has not"
    done
done
exit $failed

# program.sh: sourced by the tests of the programs: a place to work in, counting failures, runs that must go well, and bad input.
ringzero=${RINGZERO:?set RINGZERO to the program}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
    echo "failed: $*"
    failed=1
}

# run ARGUMENTS…: must succeed; output in $work/out, errors in $work/err.
run() {
    "$ringzero" "$@" >"$work/out" 2>"$work/err" || fail "$*: exit code $?: $(cat "$work/out" "$work/err")"
}

# refused WORDS ARGUMENTS…: exit code 2, nothing on standard output, one line that holds the words.
refused() {
    local words=$1 code
    shift
    "$ringzero" "$@" >"$work/out" 2>"$work/err"
    code=$?
    [ $code -eq 2 ] || fail "$*: exit code $code, expected 2"
    [ ! -s "$work/out" ] || fail "$*: wrote to standard output"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$*: wrote more or less than 1 line: $(cat "$work/err")"
    grep -qF -- "$words" "$work/err" || fail "$*: \"$words\" is not in: $(cat "$work/err")"
}

# rows FILE: of a table, without its header and footer lines.
rows() { grep -v '^#' "$1"; }

# parses FILE: it is JSON, where there is something to tell that.
parses() {
    command -v python3 >/dev/null || return 0
    python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$1" || fail "$1 does not parse"
}

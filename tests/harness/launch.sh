# launch.sh: sourced by the tests of launchers: counting failures, a quick benchmark, and a rank that is killed.
ringzero=${RINGZERO:-build/ringzero}
ringzero=$(realpath "$ringzero")
work=$(mktemp -d)
failures=0
# The thread sanitizer ends a program that loads a library while a suppression by library is in force; PMIx is loaded.
[ -z "${TSAN_OPTIONS:-}" ] || export TSAN_OPTIONS=${TSAN_OPTIONS%%:suppressions=*}:ignore_noninstrumented_modules=1
quick="all_reduce -b 4K -e 1M -f 256 -n 2 -w 1"

skip() { echo "skipped: $1"; rm -rf "$work"; exit 77; }
need_program() { command -v "$1" >/dev/null || skip "$1 is not installed (Debian: apt install $2)"; }
fail() { echo "FAILED: $1"; [ -z "${2:-}" ] || tail -25 "$2" | sed 's/^/    /'; failures=$((failures + 1)); }
finish() { echo "$failures failed"; [ $failures = 0 ]; exit; }
free_port() { echo $((20000 + RANDOM % 10000)); }

# good WHAT FILE: the benchmark in it ended well.
good() { grep -q '^# Out of bounds values : 0 OK$' "$2" && grep -q 'predicted OK$' "$2" || fail "$1: no right result" "$2"; }
# works WHAT COMMAND…: the benchmark that a launcher starts ends well; what it prints is in $work/out.
works() {
  local what=$1 code=0
  shift
  timeout 30 "$@" >"$work/out" 2>&1 || code=$?
  [ $code = 0 ] || fail "$what: exit code $code" "$work/out"
  good "$what" "$work/out"
}
# says WHAT WORDS: the last command's output has the words.
says() { grep -qE -- "$2" "$work/out" || fail "$1: \"$2\" is not in" "$work/out"; }
# refused WHAT WORDS COMMAND…: ends, without success, in time, with the words, if there are any.
refused() {
  local what=$1 words=$2 code=0
  shift 2
  timeout 30 "$@" >"$work/out" 2>&1 || code=$?
  [ $code != 0 ] && [ $code != 124 ] || fail "$what: exit code $code" "$work/out"
  [ -z "$words" ] || says "$what" "$words"
}
# death WHAT COMMAND…: a launcher's three ranks measure for ever, rank 1 is killed: all end soon, without success.
death() {
  local what=$1 launcher ranks victim code=0
  shift
  "$@" all_reduce -b 1M -e 1M -n 1000000 -c 0 >"$work/out" 2>&1 &
  launcher=$!
  for _ in $(seq 300); do grep -q 'of limit$' "$work/out" && break; sleep 0.05; done
  ranks=$(sed -n 's/^# *Rank *[0-9]* Pid *\([0-9]*\).*/\1/p' "$work/out")
  victim=$(sed -n 's/^# *Rank  1 Pid *\([0-9]*\).*/\1/p' "$work/out")
  [ -n "$victim" ] || { fail "$what: no rank 1" "$work/out"; kill -KILL $launcher; return; }
  kill -KILL "$victim"
  for _ in $(seq 200); do kill -0 $launcher 2>/dev/null || break; sleep 0.05; done
  kill -KILL $launcher 2>/dev/null && fail "$what: the launcher still runs 10 s after a rank was killed" "$work/out"
  wait $launcher || code=$?
  [ $code != 0 ] || fail "$what: success although a rank was killed" "$work/out"
  for _ in $(seq 60); do kill -0 $ranks 2>/dev/null || break; sleep 0.05; done
  for rank in $ranks; do kill -0 "$rank" 2>/dev/null && fail "$what: process $rank is left"; done
}
# trains WHAT COMMAND…: three steps at the ranks that the launcher starts.
trains() {
  local what=$1 code=0
  shift
  seq 20000 >"$work/text"
  timeout 30 "$@" train --data "$work/text" --steps 3 --batch 4 >"$work/out" 2>&1 || code=$?
  [ $code = 0 ] && grep -q '^# measured and predicted: OK' "$work/out" || fail "$what: exit code $code" "$work/out"
}
has_pmix() { grep -q 'libpmix\.so' "$ringzero"; }

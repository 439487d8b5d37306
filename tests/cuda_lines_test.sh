#!/usr/bin/env bash
# Every line of every .cu and .cuh runs in the simulator, in every order of threads, with and without delays: builds the modules with
# counters, runs what uses the simulator once for each setting, and tells which lines ran in each. A line that ran in none is a
# failure; one that ran in some alone waits for another kernel, or for the clock.
# ctest: timeout=3600 serial labels=long;plain
#
# A line that only a GPU, or only a broken one, reaches says so itself: it holds "never run here:" and the reason, or lies between
# two lines that hold "never run here {" and "never run here }". Kernel code inside #if __CUDA_ARCH__ is not compiled, so not asked for.
# Lines of *_cuda.c are counted too, and told; they have errors of CUDA that nothing can bring about, and what ran in ranks that the
# harness forked is not in their numbers: those leave by _exit.
# Tests that set the order themselves go through all of them, in each setting.
#
#   tests/cuda_lines_test.sh TEST…      by these tests alone: which lines do they run
#   CUDA_LINES_SETTINGS="forward:0"     these settings alone, ORDER:DELAY_US each
#   CUDA_LINES_REPORT=FILE              writes the report: bench/results/cuda_coverage.md is that of all settings
set -u
source=$(realpath "${RINGZERO_SOURCE:-$(dirname "$0")/..}")
build=$(realpath "$(dirname "${RINGZERO:-$source/build/ringzero}")")/lines
settings=${CUDA_LINES_SETTINGS:-forward:0 reverse:0 random:0 forward:200 reverse:200 random:200}
report=${CUDA_LINES_REPORT:+$(realpath "$CUDA_LINES_REPORT")}
cd "$source" || exit 1
command -v gcov >/dev/null || { echo "skipped: gcov was not found"; exit 77; }
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRINGZERO_COVERAGE=ON -DRINGZERO_CUDA_ARCHITECTURES= >"$build.log" 2>&1 ||
  { tail -5 "$build.log"; exit 1; }
grep -q 'cudasim  *off' "$build.log" && { echo "skipped: $(grep 'cudasim' "$build.log")"; exit 77; }

if [ $# -gt 0 ]; then tests=$*; else
  tests=$(grep -lE 'cudasim|test_has_device' tests/*_test.c tests/*_test.sh | grep -vE '/(cuda_|cudasim_)' | xargs -n 1 basename | sed 's/\..*//')
fi
programs=$(for test in $tests; do [ ! -f "tests/$test.c" ] || echo "$test"; done)
# shellcheck disable=SC2086 # a list of targets
cmake --build "$build" --target ringzero ringzero_cudasim kernel_bench $programs >"$build.log" 2>&1 || { tail -20 "$build.log"; exit 1; }
expression="^($(echo $tests | tr ' ' '|'))\$"
work=$build/gcov
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1

# A template stands in gcov's output as a whole and once for each of its instances: a line has run if any of them has.
# One line of output for each line of source that counts: file, number, whether it ran, its text.
lines_of() {
  awk -F: '
    FNR == 1 { file = "" }
    $2 ~ /^ *0$/ && $3 == "Source" { file = $4; sub(/^(\.\.\/)+/, "", file); next }
    file !~ /\.(cu|cuh)$|_cuda\.c$/ { next }
    /^ *(-|#####|=====|\$\$\$\$\$|%%%%%|[0-9]+\*?): *[0-9]+:/ {
      text = $0; sub(/^[^:]*:[^:]*:/, "", text)
      if (index(text, "never run here {")) within[file] = 1
      if (index(text, "never run here }")) within[file] = 0
      count = $1; gsub(/[ *]/, "", count)
      if (count == "-" || within[file] || index(text, "never run here:")) next
      key = file "\t" ($2 + 0)
      words[key] = text
      if (count ~ /^[0-9]+$/) ran[key] = 1
    }
    END { for (key in words) printf "%s\t%d\t%s\n", key, key in ran, words[key] }' "$@"
}

for setting in $settings; do
  find "$build" -name '*.gcda' -delete
  started=$SECONDS
  (cd "$build" && CUDASIM_ORDER=${setting%:*} CUDASIM_DELAY_US=${setting#*:} ctest -R "$expression" --no-tests=error --output-on-failure) >"$build.log" 2>&1 ||
    { tail -40 "$build.log"; echo "failed: a test fails with counters, in $setting; $build.log has all of it"; exit 1; }
  rm -f ./*.gcov # sources have paths relative to the build folder where ccache made them so
  (cd "$build" && find . -path '*ringzero_cudasim*' -name '*.gcda' -exec gcov -p -r -s "$source" {} + && mv ./*.gcov gcov/) >/dev/null 2>&1
  [ -n "$(ls ./*.gcov 2>/dev/null)" ] || { echo "failed: the tests left no counters"; exit 1; }
  lines_of ./*.gcov | sed "s/^/$setting\t/" >"lines.$setting"
  echo "$setting: $(grep '^100%' "$build.log" | sed 's/.* out of //') tests in $((SECONDS - started)) s"
done

# A table: of each file how many lines count, and how many ran in each setting.
table() {
  cat lines.* | awk -F'\t' -v settings="$settings" '
    { key = $2 "\t" $3; if (!(key in seen)) { seen[key] = 1; total[$2]++ }
      done[$2, $1] += $4 }
    END {
      n = split(settings, name, " ")
      printf "| file | lines |"; for (i = 1; i <= n; i++) printf " %s |", name[i]; printf "\n|---|---:|"
      for (i = 1; i <= n; i++) printf "---:|"; printf "\n"
      for (file in total) {
        row = sprintf("| %s | %d |", file, total[file])
        for (i = 1; i <= n; i++) row = row sprintf(" %d |", done[file, name[i]])
        print row | "sort"
      }
    }'
}
table
# Lines of kernels that ran in fewer settings than asked for: in how many, and which.
seldom() {
  cat lines.* | awk -F'\t' '$2 ~ /\.(cu|cuh)$/ { key = $2 ":" $3 ":" $5; asked[key]++; ran[key] += $4 }
    END { for (key in asked) if (ran[key] < asked[key]) printf "%d %s\n", ran[key], key }' | sort -k 2V
}
seldom | grep -v '^0 ' | sed 's/^\([0-9]*\) /in \1 settings: /'
missing=$(seldom | sed -n 's/^0 //p')
[ -z "$report" ] || {
  echo "# Lines of the CUDA sources that tests run"
  echo
  echo "$(date +%F), on the simulator; made by \`tests/cuda_lines_test.sh\`, which fails if a line of a \`.cu\` or \`.cuh\` runs in no setting. Lines that"
  echo "say \"never run here\" and why are not counted. A setting: the order of threads and blocks, and by how many microseconds at most what is"
  echo "queued begins later. Of \`*_cuda.c\`, the host's side, what ran in forked ranks of the tests is not in the numbers."
  echo
  table
} >"$report"
[ -z "$missing" ] || { echo "never run:"; echo "$missing"; exit 1; }
shopt -s nullglob
for file in "$source"/{verbs,ring,model,optim}/*.cu; do
  cat lines.* | cut -f2 | grep -qx "${file#"$source"/}" || { echo "failed: nothing of ${file#"$source"/} was counted"; exit 1; }
done

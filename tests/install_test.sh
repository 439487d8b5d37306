#!/usr/bin/env bash
# The library as a user has it: installed into a prefix of its own, found by pkg-config, and README.md's example
# built on it. ctest: timeout=180 labels=plain
#
#   headers    each compiles alone as C11 and C++17, with nothing before it
#   symbols    libringzero.so shows every function that the headers declare, and nothing that is not of their names
#   example    linked to the .so and to the .a; one rank alone, and two ranks by torchrun's variables
set -u
build=$(dirname "${RINGZERO:?set RINGZERO to the program}")
source=${RINGZERO_SOURCE:?set RINGZERO_SOURCE to the source tree}
. "$(dirname "$0")/harness/program.sh"

command -v pkg-config >/dev/null || { echo "skipped: pkg-config is missing"; exit 77; }
cc=${CC:-cc} cxx=${CXX:-c++}
# A library built with a sanitizer needs its user built alike.
sanitize=$(sed -n 's/^RINGZERO_SANITIZE:[A-Z]*=\(..*\)/-fsanitize=\1/p' "$build/CMakeCache.txt")

prefix=$work/prefix
cmake --install "$build" --prefix "$prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
pc=$(find "$prefix" -name ringzero.pc) || exit 1
export PKG_CONFIG_PATH=${pc%/*}
libdir=$(pkg-config --variable=libdir ringzero) || exit 1
read -ra flags <<<"$(pkg-config --cflags ringzero)"
read -ra libs <<<"$(pkg-config --libs ringzero)"
read -ra static_libs <<<"$(pkg-config --static --libs ringzero | sed "s/-lringzero//")"
[ -x "$prefix/bin/ringzero" ] || fail "bin/ringzero is not installed"

# headers
cd "$prefix/include" || exit 1
for header in ringzero/*.h; do
  echo "#include <$header>" | "$cc" -std=gnu11 -Wall -Wextra -Werror "${flags[@]}" -x c -fsyntax-only - || fail "$header in C"
  command -v "$cxx" >/dev/null || continue
  echo "#include <$header>" | "$cxx" -std=c++17 -Wall -Wextra -Werror "${flags[@]}" -x c++ -fsyntax-only - ||
    fail "$header in C++"
done
# Also their functions must have C names in C++.
printf '#include <ringzero/ring.h>\n#include <ringzero/launch.h>\nint main() { bool f; bootstrap_config c = bootstrap_config_single();
return launch_from_environment(&c, &f) == STATUS_OK && ring_chunk_begin(8, 2, 1) == 4 ? 0 : 1; }\n' >"$work/user.cc"
if command -v "$cxx" >/dev/null; then
  # shellcheck disable=SC2086
  "$cxx" -std=c++17 $sanitize "${flags[@]}" "$work/user.cc" "${libs[@]}" -Wl,-rpath,"$libdir" -o "$work/user" &&
    "$work/user" || fail "a C++ program"
fi

# symbols: what gcc finds declared in the installed headers, beside what the library exports
cat ringzero/*.h >"$work/all.c"
if "$cc" --version | grep -qi gcc || "$cc" -v 2>&1 | grep -q '^gcc'; then
  (cd ringzero && "$cc" "${flags[@]}" -aux-info "$work/declared.X" -c "$work/all.c" -I. -o "$work/all.o") || fail "all headers together"
  grep "/include/ringzero/[a-z]*/" "$work/declared.X" | grep -v '\*/ static' |
    sed -E 's/.*[ *]([a-z][a-z0-9_]*) \(.*/\1/' | sort -u >"$work/declared"
  nm -D --defined-only "$libdir/libringzero.so" | awk '{ print $NF }' | sed 's/@.*//' | sort -u >"$work/shown"
  [ "$(wc -l <"$work/declared")" -ge 50 ] || fail "only $(wc -l <"$work/declared") declarations found"
  missing=$(comm -23 "$work/declared" "$work/shown")
  [ -z "$missing" ] || fail "declared in a public header, but not in libringzero.so:" $missing
  strange=$(grep -vE '^(ring|redop|reduce_dtype|hierarchy|collective|plan|primitive|bootstrap|launch|device|memory|stream|event|span|status|dtype|log|edge|transport|transports|bell)(_|$)' "$work/shown")
  [ -z "$strange" ] || fail "libringzero.so shows" $strange
fi

# example
cd "$work" || exit 1
awk '/^## Using the library/ { here = 1 } here && /^```c/ { code = 1; next } code && /^```/ { exit } code' "$source/README.md" >sum.c
grep -q 'int main' sum.c || fail "README.md has no complete example under \"Using the library\""
# shellcheck disable=SC2086
"$cc" $sanitize -Wall -Wextra -Werror sum.c "${flags[@]}" "${libs[@]}" -Wl,-rpath,"$libdir" -o sum || fail "the example, shared"
# shellcheck disable=SC2086
"$cc" $sanitize -Wall -Wextra -Werror sum.c "${flags[@]}" "$libdir/libringzero.a" "${static_libs[@]}" -o sum_static ||
  fail "the example, static"

for program in ./sum ./sum_static; do
  [ "$(env -u RANK -u WORLD_SIZE $program)" = "rank 0 of 1: 0 1 2 3" ] || fail "$program alone printed $(env -u RANK -u WORLD_SIZE $program)"
  port=$((20000 + RANDOM % 10000))
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port $program >"out$rank" 2>&1 &
  done
  wait
  for rank in 0 1; do
    [ "$(cat "out$rank")" = "rank $rank of 2: 1 3 5 7" ] || fail "$program on 2 ranks: rank $rank printed $(cat "out$rank")"
  done
done
exit $failed

#!/usr/bin/env bash
# The walls of the house: which folder may include which, and what each must not know.
# ctest: timeout=30
#
#   verbs <- ring, model, optim <- shard <- bench; ring, model and optim never include each other
#   no transport knows dtypes, reductions or rings; ring knows no sockets; model knows no ranks; optim knows no layers
set -u
cd "${RINGZERO_SOURCE:-$(dirname "$0")/..}" || exit 1
failures=0

complain() { echo "$1"; failures=$((failures + 1)); }

# may FOLDER "ALLOWED…": every quoted include of the folder's files begins with an allowed folder.
may() {
  local folder=$1 allowed=" $2 " file target
  while IFS=: read -r file target; do
    case $allowed in *" ${target%%/*} "*) ;; *) complain "$file includes $target; $folder may include only: $2" ;; esac
  done < <(grep -HoE '^ *# *include *"[^"]+"' $(ls "$folder"/*.{c,h,cu,cuh} 2>/dev/null) | sed -E 's/# *include *"([^"]+)"/\1/; s/: */:/')
}
may verbs "verbs"
may ring "verbs ring"
may model "verbs model"
may optim "verbs optim"
may shard "verbs ring model optim shard"
may bench "verbs ring model optim shard bench"

# shard reaches the model through its entry points only, and the ring through its public header.
while IFS=: read -r file target; do
  case $target in
  model/hooks.h | model/params.h | model/uses.h | model/model.h | model/tokens.h | model/draw.h | model/weights.h | model/choices.h | ring/ring.h | ring/plan.h) ;;
  *) complain "$file includes $target; shard may include of model only hooks.h params.h uses.h model.h tokens.h draw.h weights.h choices.h, of ring only ring.h plan.h" ;;
  esac
done < <(grep -HoE '^#include "(model|ring)/[^"]+"' shard/*.[ch] | sed -E 's/#include "([^"]+)"/\1/')

# The programs use the ring as any user does.
for file in bench/*.[ch]; do
  hits=$(grep -nE '^#include "ring/' "$file" | grep -vE '"ring/(ring|plan|path|simulate|topology|trace)\.h"')
  [ -z "$hits" ] || complain "$file includes more of ring than ring.h, plan.h, path.h, simulate.h, topology.h and trace.h: $hits"
done

# must_not FILES WORDS REASON: comments are cut away first, so that prose may explain what the code does not know.
must_not() {
  local file hits
  for file in $1; do
    hits=$(sed -E 's://.*$::' "$file" | perl -0pe 's{/\*.*?\*/}{ }gs' | grep -nwE "$2" | head -3)
    [ -z "$hits" ] || complain "$file: $3: $hits"
  done
}
transports=$(ls verbs/transport.h verbs/fifo.h verbs/edge*.[ch])
must_not "$transports" 'dtype\w*|redop\w*|DTYPE_\w+|REDOP_\w+|chunk\w*|nranks|ring_\w+|prev|next' "a transport knows bytes and one peer"
must_not "$(ls ring/*.[ch])" 'socket|bind|listen|accept|connect|sockaddr\w*|ibv_\w+|memfd_create|shm_open|cudaIpc\w*' "the ring knows no sockets, queue pairs or handles"
# A tokenizer has ranks of its own: the order of its merges.
must_not "$(ls model/*.[ch] | grep -v token)" 'nranks|ring_\w+|bootstrap\w*|rank' "the model knows no ranks"
must_not "$(ls optim/*.[ch])" 'layer\w*|unit\w*|shard\w*|rank' "the optimizer knows flat ranges of numbers"
must_not "$(ls verbs/*.h ring/*.h)" '_Atomic|restrict' "headers stay valid C++"

[ -s ring/plan.c ] && [ -s verbs/transport.h ] || complain "the files that this test reads are gone"
echo "include rules: $failures violations"
[ "$failures" = 0 ]

#!/usr/bin/env bash
# activations: what it costs in speed to keep less of a block's activations, where two ranks share every tensor: none, full, partitioned (P_a)
# and offload (P_a+cpu), beside full, which is what P_a stands on; and of rows, by --sequence-parallel.
#
#   bench/compare/activations.sh [ROUNDS] [MODEL]     after building; MODEL: nano, mini, or both when left out
set -eu
cd "$(dirname "$0")/../.."
. bench/compare/train_rounds.sh
name=activations option=--checkpoint-activations base=1 per="of both"
settings=(none full partitioned offload "none --sequence-parallel" "full --sequence-parallel")
fixed=(--tensor 2)
heading="The price of keeping less of the activations" about="that share tensors,"
measure "${1:-5}" "${2:-nano mini}"
report

#!/usr/bin/env bash
# stages: what a ZeRO stage costs in speed.
#
#   bench/compare/stages.sh [ROUNDS] [MODEL]     after building; MODEL: nano, mini, or both when left out
set -eu
cd "$(dirname "$0")/../.."
. bench/compare/train_rounds.sh
name=stages option=--stage base=0 per="a rank"
settings=(0 1 2 3)
fixed=()
heading="The price of a stage" about="that read data of their own,"
measure "${1:-5}" "${2:-nano mini}"
report

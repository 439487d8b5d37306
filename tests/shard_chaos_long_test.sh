#!/usr/bin/env bash
# The chaos of shard_chaos_test for a minute.
# ctest: timeout=180 labels=long
exec "$(dirname "${RINGZERO:?set RINGZERO to the program}")/tests/shard_chaos_test" --seconds 60

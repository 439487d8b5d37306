#!/usr/bin/env bash
# As tests/cuda_nvcc_test.sh, with the optimisation that the module is built with: few registers of a kernel go to memory.
# ctest: timeout=1800 serial labels=long;plain
CUDA_OPTIMISE=1 exec bash "$(dirname "$0")/cuda_nvcc_test.sh"

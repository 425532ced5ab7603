#!/usr/bin/env bash
# Checks and measurements of the CUDA backend, without PyTorch: kernels, every
# group and split with checked data, repeated runs, a soak, the tables of
# docs/performance.md, and interference with a GEMM.
#
#   bench/gpu.sh FOLDER [PART...]     parts: see the end of this file
#
# Uses the GPUs that it finds: one rank each, or several ranks on one (threads
# of one process; NCCL is told so below). TIDE_BUILD names the build folder,
# TIDE_NCCL_LIBRARY an NCCL of 2.30 or newer. FOLDER gets one JSON file a table
# and gpu.log with everything. A part that fails does not stop the others.
# Exit 1 if one did.
set -uo pipefail
cd "$(dirname "$0")/.."
. bench/steps.sh
# Kernels of NCCL stay small: ranks share their GPU.
export NCCL_MAX_CTAS=${NCCL_MAX_CTAS:-8}

kernels() {
    for test in sum flat strided; do
        [ -x "$build/tests/cuda_$test" ] &&
            step 120 2 "$build/tests/cuda_$test"
    done
}

sanitizer() {
    for tool in memcheck racecheck; do
        for test in sum flat strided; do
            [ -x "$build/tests/cuda_$test" ] &&
                step 240 3 compute-sanitizer --tool $tool \
                    --error-exitcode 9 "$build/tests/cuda_$test" --small
        done
    done
}

# Every split, both modes, every byte checked; every group on one of them.
check() { # RANKS LOCAL GROUP
    local op
    for op in ag rs; do
        perf 1 60 --op $op --ranks "$1" --local "$2" --group "$3" --scale 64 \
            --iters 2 --warmup 1 --verify-runs 3
    done
}

conform() {
    local split group
    for split in '1 1' '2 2' '2 1' '4 4' '4 2' '4 1' '8 8' '8 4' '8 2' '8 1'; do
        for group in llama3.1-8b uneven; do
            check $split $group
        done
    done
    for group in qwen3-30b-a3b wan2.2 empty tiny; do
        check 4 2 $group
    done
}

repeat() {
    for split in 2x2 4x2 8x8; do
        perf 2 90 --op rs --ranks ${split%x*} --local ${split#*x} \
            --group llama3.1-8b --scale 16 --iters 2 --verify-runs 20
    done
}

soak() {
    perf 3 120 --soak 10000 --ranks 4 --local 4 --group uneven --scale 16
    perf 3 120 --soak 2000 --ranks 4 --local 2 --group uneven --scale 16
}

# The tables. All baselines take turns with tide in each iteration.
tables() {
    local ranks=8 all=nccl,nccl-ce,nccl-sym,flat,layout
    [ "$gpus" -gt 1 ] && ranks=$gpus
    for op in ag rs; do
        perf 40 150 --op $op --ranks $ranks --bytes 1M,8M,32M,128M --iters 20 \
            --baseline $all --json "$out/$op-$ranks.json"
        perf 12 90 --op $op --ranks $ranks --group llama3.1-70b --scale 4 \
            --iters 10 --baseline $all --json "$out/$op-$ranks-70b.json"
    done
}

rails() {
    local ranks=4
    [ "$gpus" -gt 4 ] && ranks=$gpus
    for op in ag rs; do
        perf 8 90 --op $op --ranks $ranks --local 2 --bytes 1M,32M --iters 20 \
            --baseline nccl,flat --json "$out/$op-rails.json"
    done
}

probe() {
    step 90 80 "$build/tide-probe" --run copy,sum --json "$out/probe-sum.json"
    step 120 60 "$build/tide-probe" --run gemm --json "$out/probe-gemm.json"
    step 120 60 "$build/tide-probe" --run gemm --priority low --ctas 8,16 \
        --chunk 2M,8M --share 64K,128K,512K --json "$out/probe-low.json"
}

run_parts kernels conform repeat soak tables rails probe sanitizer

#!/usr/bin/env bash
# Checks and measurements of the CUDA backend, without PyTorch: kernels, every
# group and split with checked data and repeated runs, a soak, the tables of
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

# Racecheck takes a hundred times as long as the test, or more.
sanitizer() {
    for tool in racecheck memcheck; do
        for test in sum flat strided; do
            [ -x "$build/tests/cuda_$test" ] &&
                step 100 3 compute-sanitizer --tool $tool \
                    --error-exitcode 9 "$build/tests/cuda_$test" --small
        done
    done
}

# Every split, as ranks x ranks of a node, with both collectives on every group
# in one process: every byte checked, sums against fp64, 20 runs of each mode
# equal in every bit. Scales keep a group to some MiB.
conform() {
    local split
    for split in 1x1 2x2 2x1 4x4 4x2 4x1 8x8 8x4 8x2 8x1; do
        perf 2 60 --op ag,rs --ranks ${split%x*} --local ${split#*x} \
            --group \
            llama3.1-8b,llama3.1-70b,qwen3-30b-a3b,wan2.2,uneven,empty,tiny \
            --scale 64,256,16,64,1,1,1 --warmup 0 --iters 1 --verify-runs 20
    done
}

soak() {
    perf 3 120 --soak 10000 --ranks 4 --local 4 --group uneven --scale 16
    perf 3 120 --soak 2000 --ranks 4 --local 2 --group uneven --scale 16
}

# The tables. Baselines take turns with tide in each iteration; eight ranks of
# one GPU gather beside few of them (docs/cuda.md, Streams), and reduce in
# longer launches, which suit ranks that share it.
tables() {
    local all=nccl,nccl-ce,nccl-sym,flat,layout few
    local sizes="--bytes 1M,8M,32M,128M --iters 20"
    local block="--group llama3.1-70b --scale 4 --iters 10"
    if [ "$gpus" -gt 1 ]; then
        perf 70 240 --op ag,rs --ranks "$gpus" $sizes --baseline $all \
            --json "$out/tables-$gpus.json"
        perf 20 120 --op ag,rs --ranks "$gpus" $block --baseline $all \
            --json "$out/tables-$gpus-70b.json"
        return
    fi
    for few in nccl-sym,layout nccl; do
        perf 16 120 --op ag --ranks 8 $sizes --baseline $few \
            --json "$out/tables-8-ag-${few%,*}.json"
        perf 4 120 --op ag --ranks 8 $block --baseline $few \
            --json "$out/tables-8-ag-70b-${few%,*}.json"
    done
    TIDE_SUM_CTAS=32 TIDE_SUM_CHUNK_KIB=16384 perf 40 240 --op rs --ranks 8 \
        $sizes --baseline $all --json "$out/tables-8-rs.json"
}

rails() {
    local ranks=4
    [ "$gpus" -gt 4 ] && ranks=$gpus
    perf 24 120 --op ag,rs --ranks $ranks --local 2 --bytes 1M,32M --iters 20 \
        --baseline nccl,flat --json "$out/rails.json"
}

probe() {
    local k
    step 90 80 "$build/tide-probe" --run copy,sum --json "$out/probe-sum.json"
    for k in 8192 28672; do
        step 120 60 "$build/tide-probe" --run gemm --gemm 1536x2816x$k \
            --ctas 32,128 --chunk 2M,4M --json "$out/probe-gemm-$k.json"
    done
}

run_parts kernels conform soak tables rails probe sanitizer
finish

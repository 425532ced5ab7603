#!/usr/bin/env bash
# What only several GPUs of one host can show, in under ten minutes: conformance
# with one rank a GPU, whether an all-gather needs SMs, how many SMs collectives
# take, what they cost a GEMM beside them, the tables against NCCL, and FSDP2
# on blocks of the shape of Llama 3.1 8B. Only if asked for, as it takes minutes
# of its own: bounds, FSDP2 with other bounds of sums. Two ranks share a GPU
# that is alone; held, sms and FSDP2 on symmetric memory mean nothing there and
# are skipped.
#
#   bench/multi_gpu.sh FOLDER [PART...]     parts: see the end of this file
#
# TIDE_BUILD names the build folder, TIDE_NCCL_LIBRARY an NCCL of 2.30 or newer,
# which PyTorch gets, too. FOLDER gets a JSON file of each part and
# multi_gpu.log. A part that fails does not stop the others; exit 1 if one did.
set -uo pipefail
cd "$(dirname "$0")/.."
. bench/steps.sh
python=${TIDE_PYTHON:-python3}
ranks=$((gpus > 1 ? gpus : 2))
export TIDE_BUILD=$build # for what Python starts
export PYTHONPATH="$build/python:bench${PYTHONPATH:+:$PYTHONPATH}"
[ "$gpus" -lt 2 ] && export NCCL_MAX_CTAS=8

torch() { # SECONDS LINES SCRIPT...
    local limit=$1 lines=$2
    shift 2
    LD_PRELOAD=${TIDE_NCCL_LIBRARY:-} step "$limit" "$lines" "$python" -m \
        torch.distributed.run --nproc-per-node "$ranks" "$@"
}

# Does each rank have a GPU? If not, says that NAME is skipped.
has_gpus() { # NAME
    [ "$gpus" -gt 1 ] && return 0
    echo "== $1 skipped: it means nothing on one GPU" | tee -a "$log"
    return 1
}

conform() {
    local local_size
    for local_size in "$ranks" 1; do
        perf 2 90 --op ag,rs --ranks "$ranks" --local "$local_size" \
            --group uneven,empty --iters 2 --verify-runs 20
    done
    perf 2 90 --op ag,rs --ranks "$ranks" --processes --group llama3.1-8b \
        --scale 64 --iters 2 --verify-runs 20
}

# With copies within a GPU by tide's kernel, and by the driver.
held() {
    has_gpus held || return 0
    torch 60 12 bench/held_sms.py --nccl --json "$out/held.json"
    TIDE_LOCAL_COPIES=0 torch 60 12 bench/held_sms.py \
        --json "$out/held-driver.json"
}

sms() {
    has_gpus sms || return 0
    torch 60 12 bench/sm_ids.py --json "$out/sm_ids.json"
}

gemm() {
    torch 60 8 bench/gemm_beside.py --json "$out/gemm.json"
}

tables() {
    local all=nccl,nccl-ce,nccl-sym,flat,layout
    perf 80 180 --op ag,rs --ranks "$ranks" --bytes 1M,8M,32M,128M,512M \
        --baseline $all --json "$out/tables.json"
    perf 20 150 --op ag,rs --ranks "$ranks" --group llama3.1-70b --iters 10 \
        --baseline $all --json "$out/tables-70b.json"
}

# Steps with more or fewer, longer or shorter launches of sums, in turns, and
# without tide.
bounds() {
    local round mode setting
    for round in 1 2; do
        MODEL=llama3.1-8b LAYERS=${LAYERS:-8} torch 90 1 bench/fsdp_step.py \
            stock "$out/stock-$round.json"
        for setting in TIDE_SUM_CHUNK_KIB=4096 TIDE_SUM_CHUNK_KIB=8192 \
            TIDE_SUM_GRAPHS=1; do
            for mode in in_place slot_reuse; do
                echo "== $setting" | tee -a "$log"
                export "${setting?}"
                MODEL=llama3.1-8b LAYERS=${LAYERS:-8} torch 90 1 \
                    bench/fsdp_step.py $mode \
                    "$out/${setting/=/-}-$mode-$round.json"
                unset "${setting%=*}"
            done
        done
    done
}

fsdp() {
    local mode
    for mode in stock symm_mem in_place slot_reuse; do
        [ $mode != symm_mem ] || has_gpus "fsdp $mode" || continue
        MODEL=llama3.1-8b LAYERS=${LAYERS:-8} torch 90 1 bench/fsdp_step.py \
            $mode "$out/step-$mode.json"
    done
}

run_parts conform held sms gemm tables fsdp
[[ $wanted == *" bounds "* ]] && run_part bounds
finish

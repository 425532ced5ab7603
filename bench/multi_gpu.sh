#!/usr/bin/env bash
# What only several GPUs of one host can show, in under ten minutes: conformance
# with one rank a GPU, whether an all-gather needs SMs, the tables against NCCL,
# what collectives cost a GEMM beside them, and FSDP2 on blocks of the shape of
# Llama 3.1 8B. On one GPU it runs in full with ranks that share it.
#
#   bench/multi_gpu.sh FOLDER [PART...]     parts: see the end of this file
#
# TIDE_BUILD names the build folder, TIDE_NCCL_LIBRARY an NCCL of 2.30 or newer,
# which PyTorch gets, too. FOLDER gets a JSON file of each part and
# multi_gpu.log. A part that fails does not stop the others; exit 1 if one did.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:?usage: multi_gpu.sh FOLDER [PART...]}" && cd "$1" && pwd)
shift
export TIDE_BUILD=${TIDE_BUILD:-build}
python=${TIDE_PYTHON:-python3}
wanted=" $* "
log=$out/multi_gpu.log
failed=0
gpus=$(nvidia-smi -L | wc -l)
[ -n "${CUDA_VISIBLE_DEVICES:-}" ] &&
    gpus=$(tr "," "\n" <<<"$CUDA_VISIBLE_DEVICES" | wc -l)
ranks=$((gpus > 1 ? gpus : 2))
: >"$log"

export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0
export CUDA_DEVICE_MAX_CONNECTIONS=32 TIDE_TIMEOUT_MS=${TIDE_TIMEOUT_MS:-20000}
export PYTHONPATH="$TIDE_BUILD/python:bench${PYTHONPATH:+:$PYTHONPATH}"
[ "$gpus" -lt 2 ] && export NCCL_MAX_CTAS=8

step() { # SECONDS LINES COMMAND...
    local limit=$1 lines=$2 code
    shift 2
    echo "== $*" | tee -a "$log"
    timeout -k 5 "$limit" "$@" >"$out/.step" 2>&1
    code=$?
    cat "$out/.step" >>"$log"
    grep -v '^# \(tide-perf\|group\|ranks\)' "$out/.step" | tail -n "$lines"
    rm -f "$out/.step"
    [ $code = 0 ] && return 0
    echo "FAILED with code $code" | tee -a "$log"
    failed=1
}

perf() { # LINES ARGUMENTS...
    local lines=$1
    shift
    step 90 "$lines" "$TIDE_BUILD/tide-perf" --backend cuda "$@"
}

torch() { # SECONDS LINES SCRIPT...
    local limit=$1 lines=$2
    shift 2
    LD_PRELOAD=${TIDE_NCCL_LIBRARY:-} step "$limit" "$lines" "$python" -m \
        torch.distributed.run --nproc-per-node "$ranks" "$@"
}

conform() {
    local op local_size
    for op in ag rs; do
        for local_size in "$ranks" 1; do
            perf 2 --op $op --ranks "$ranks" --local "$local_size" \
                --group uneven --iters 2 --verify-runs 3
        done
        perf 2 --op $op --ranks "$ranks" --processes --group llama3.1-8b \
            --scale 64 --iters 2 --verify-runs 3
    done
}

# With copies within a GPU by tide's kernel, and by the driver.
held() {
    torch 60 3 bench/held_sms.py --nccl
    TIDE_LOCAL_COPIES=0 torch 60 3 bench/held_sms.py
}

gemm() {
    torch 60 8 bench/gemm_beside.py --json "$out/gemm.json"
    TIDE_SUM_CTAS=16 TIDE_SUM_CHUNK_KIB=2048 torch 60 8 bench/gemm_beside.py \
        --json "$out/gemm-2M.json"
}

tables() {
    local op all=nccl,nccl-ce,nccl-sym,flat,layout
    for op in ag rs; do
        perf 40 --op $op --ranks "$ranks" --bytes 1M,8M,32M,128M,512M \
            --baseline $all --json "$out/$op.json"
        perf 10 --op $op --ranks "$ranks" --group llama3.1-70b --iters 10 \
            --baseline $all --json "$out/$op-70b.json"
    done
}

fsdp() {
    local mode
    for mode in stock in_place slot_reuse; do
        MODEL=llama3.1-8b LAYERS=${LAYERS:-8} torch 90 1 bench/fsdp_step.py \
            $mode "$out/step-$mode.json"
    done
}

for part in conform held gemm tables fsdp; do
    if [ "$wanted" = "  " ] || [[ $wanted == *" $part "* ]]; then
        $part
    fi
done
exit $failed

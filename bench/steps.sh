# What bench/gpu.sh and bench/multi_gpu.sh share; they source it with their own
# arguments, FOLDER and parts. Sets out, log, gpus, failed and wanted, and what
# NCCL and CUDA need where ranks share a GPU.
: "${1:?usage: $(basename "$0") FOLDER [PART...]}"
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 1
shift
build=${TIDE_BUILD:-build}
wanted=" $* "
log=$out/$(basename "$0" .sh).log
failed=0
gpus=$(nvidia-smi -L | wc -l)
[ -n "${CUDA_VISIBLE_DEVICES:-}" ] &&
    gpus=$(tr "," "\n" <<<"$CUDA_VISIBLE_DEVICES" | wc -l)
: >"$log"

# Several ranks may share a GPU, and waiting streams have hardware queues of
# their own. Multicast is off.
export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0
export CUDA_DEVICE_MAX_CONNECTIONS=32
export TIDE_TIMEOUT_MS=${TIDE_TIMEOUT_MS:-20000}

# step SECONDS LINES COMMAND...: runs it, shows its last lines.
step() {
    local limit=$1 lines=$2 code
    shift 2
    echo "== $*" | tee -a "$log"
    timeout -k 5 "$limit" "$@" >"$out/.step" 2>&1
    code=$?
    cat "$out/.step" >>"$log"
    grep -v '^# \(tide-perf\|ranks\)' "$out/.step" | tail -n "$lines"
    rm -f "$out/.step"
    [ $code = 0 ] && return 0
    echo "FAILED with code $code" | tee -a "$log"
    failed=1
}

# perf LINES SECONDS ARGUMENTS...: tide-perf on the GPUs.
perf() {
    local lines=$1 limit=$2
    shift 2
    step "$limit" "$lines" "$build/tide-perf" --backend cuda "$@"
}

# run_parts PART...: all of them, or those that are wanted.
run_parts() {
    local part
    for part in "$@"; do
        if [ "$wanted" = "  " ] || [[ $wanted == *" $part "* ]]; then
            run_part "$part"
        fi
    done
}

ran=0
run_part() {
    ran=1
    $1
}

# The exit code, at the end.
finish() {
    [ $ran = 1 ] || echo "there is no part$wanted"
    [ $ran = 1 ] && return $failed
}

#!/usr/bin/env bash
# All checks and measurements of FSDP2 on GPUs, within TIDE_BUDGET_S seconds
# (500). Usage: bench/gpu_fsdp.sh FOLDER [PART...]
#
# Ranks share one GPU where there is only one: NCCL 2.30 or newer must then be
# the one that is loaded (LD_PRELOAD). FOLDER gets gpu_fsdp.json with
# everything, loss_curves.json and .png, and gpu_fsdp.log. A part that fails
# or runs out of time does not stop the others. Exit 1 if one did. The part
# curves runs TIDE_CURVES_STEPS steps (1000), or as many as there is time for.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:?usage: gpu_fsdp.sh FOLDER [PART...]}" && cd "$1" && pwd)
shift
python=${TIDE_PYTHON:-python3}
build=${TIDE_BUILD:-build}
export PYTHONPATH="$build/python${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1
gpu=tests/python/gpu
parts=$(mktemp -d)
log=$out/gpu_fsdp.log
deadline=$((SECONDS + ${TIDE_BUDGET_S:-500}))
wanted=" $* "
: >"$log"
: >"$parts/table"

# part NAME SECONDS RANKS SCRIPT [ARGUMENT...]; LIMIT among the arguments stands
# for the seconds that the part has, less those to end in.
part() {
    local name=$1 limit=$2 ranks=$3 left started code
    shift 3
    [ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || return 0
    left=$((deadline - SECONDS))
    [ "$left" -lt "$limit" ] && limit=$left
    if [ "$limit" -lt 15 ]; then
        echo "$name skipped: no time left" | tee -a "$log"
        echo "$name - skipped" >>"$parts/table"
        return 0
    fi
    set -- "${@/#LIMIT/$((limit - 5))}"
    echo "=== $name, at most $limit s" | tee -a "$log"
    started=$SECONDS
    timeout -k 5 "$limit" "$python" "$gpu/launch.py" "$ranks" "$@" \
        >"$parts/$name.log" 2>&1
    code=$?
    cat "$parts/$name.log" >>"$log"
    grep -aE '^(ok|FAILED) |^\{|AssertionError|tide.*[Ee]rror|final loss' \
        "$parts/$name.log" | cut -c1-300 | tail -n 40
    # What timeout killed may have left its ranks behind.
    [ "$code" -ge 124 ] && end_ranks
    echo "$name $((SECONDS - started)) $code" >>"$parts/table"
}

# Ranks run in a session of their own; launch.py notes its id.
end_ranks() {
    local session
    for session in $(cat "$parts"/session.* 2>/dev/null); do
        kill -9 -- "-$session" 2>/dev/null
    done
}
export TIDE_SESSION_FILE=$parts/session

json() { echo "$parts/$1.json"; }

part pool 60 2 $gpu/check_pool.py "$(json pool)"
part parity 120 2 $gpu/check_parity.py two "$(json parity)"
TIDE_DEBUG_DELAY=${TIDE_DEBUG_DELAY:-2000} \
    part delayed 100 2 $gpu/check_parity.py few "$(json delayed)"
part profile 45 2 $gpu/check_profile.py "$(json profile)"
for mode in stock in_place slot_reuse; do
    part "step_$mode" 60 2 bench/fsdp_step.py $mode "$(json "step_$mode")"
done
part four 80 4 $gpu/check_parity.py four "$(json four)"
TIDE_LOCAL_SIZE=2 part rails 50 4 $gpu/check_parity.py rails "$(json rails)"
for mode in in_place slot_reuse; do
    TIDE_TIMEOUT_MS=5000 part "fault_$mode" 45 2 $gpu/check_fault.py $mode \
        "$(json "fault_$mode")"
done
part minimal 40 2 examples/minimal.py
part curves 480 2 examples/loss_curves.py \
    --budget LIMIT --steps "${TIDE_CURVES_STEPS:-1000}" --out "$out"

[ -s "$parts/table" ] || echo "there is no part$wanted" | tee -a "$log"
"$python" bench/gpu_table.py "$parts" "$out/gpu_fsdp.json"
code=$?
rm -rf "$parts"
exit $code

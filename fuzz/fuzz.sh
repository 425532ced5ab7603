#!/usr/bin/env bash
# Fuzzes all targets with libFuzzer, each for SECONDS, and installs clang if
# there is none. Where that fails, random cases run without it.
# Usage: fuzz.sh BUILD [SECONDS]. New inputs stay in BUILD/fuzz-clang/corpus-*.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
seconds=${2:-60}
work=$build/fuzz-clang
targets=(plan mutant options layout)

say() { echo "fuzz: $*"; }

# Prints a clang that has libFuzzer and its sanitizers.
find_clang() {
    local clang
    for clang in ${CLANG:-} clang clang-{20..13}; do
        if command -v "$clang" >/dev/null && can_fuzz "$clang"; then
            echo "$clang"
            return
        fi
    done
    return 1
}

can_fuzz() {
    echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
        "$1" -x c -fsanitize=fuzzer,address,undefined - -o "$work/probe" \
            2>/dev/null
}

# Debian has the runtime of sanitizers in a package of its own.
install_clang() {
    local version
    command -v apt-get >/dev/null || return 1
    say "no clang with libFuzzer here; installing it (about 400 MB)"
    install_packages clang || return 1
    version=$(clang -dumpversion | cut -d. -f1)
    find_clang >/dev/null || install_packages "libclang-rt-$version-dev"
}

install_packages() {
    local sudo=()
    if [ "$(id -u)" != 0 ]; then
        sudo=(sudo -n)
    fi
    "${sudo[@]}" apt-get update -qq &&
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

build_programs() {
    cmake -S . -B "$work" -G Ninja -DTIDE_BUILD_PYTHON=OFF -DTIDE_FUZZ=ON \
        -DTIDE_SANITIZE=ON -DCMAKE_C_COMPILER="$1" -DCMAKE_BUILD_TYPE=Debug \
        -DCMAKE_C_FLAGS_DEBUG="-O2 -g $coverage" --log-level=WARNING >/dev/null
    cmake --build "$work" --target \
        fuzz_{plan,mutant,options,layout}{,_replay}
}

# Without tracing of comparisons: input bytes are small numbers, which the
# fuzzer finds anyway, twice as fast.
coverage=-fsanitize-coverage=inline-8bit-counters,pc-table

fuzz_target() {
    local corpus=$work/corpus-$1
    mkdir -p "$corpus" "$work/seeds-$1"
    "$work/tests/fuzz_$1_replay" --unpack "$work/seeds-$1" \
        "fuzz/corpus/$1.txt" >/dev/null
    say "$1, for $seconds s"
    UBSAN_OPTIONS=halt_on_error=1 "$work/tests/fuzz_$1" \
        -max_total_time="$seconds" -max_len=160 -len_control=0 -timeout=60 \
        -entropic_scale_per_exec_time=1 -rss_limit_mb=4096 \
        -print_final_stats=1 \
        -exact_artifact_path="$work/$1.fault" "$corpus" "$work/seeds-$1" \
        >"$work/$1.log" 2>&1 || explain_fault "$1"
    grep -E 'cov: ' "$work/$1.log" | tail -1
    grep -E 'number_of_executed_units' "$work/$1.log"
}

explain_fault() {
    tail -n 60 "$work/$1.log" >&2
    say "$1 found a fault. To repeat it (the bytes are a line of" \
        "fuzz/corpus/$1.txt):" >&2
    say "$build/tests/fuzz_$1_replay --hex" \
        "$(od -An -v -tx1 "$work/$1.fault" | tr -d ' \n')" >&2
    exit 1
}

mkdir -p "$work"
if clang=$(find_clang) || { install_clang && clang=$(find_clang); }; then
    build_programs "$clang"
    for target in "${targets[@]}"; do
        fuzz_target "$target"
    done
else
    say "no clang with libFuzzer (install clang and libclang-rt-VERSION-dev);" \
        "running random cases without it"
    for target in "${targets[@]}"; do
        "$build/tests/fuzz_${target}_replay" --seconds "$seconds" \
            --seed "$(date +%s)" "fuzz/corpus/$target.txt"
    done
fi

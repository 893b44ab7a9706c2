#!/bin/bash
# run.sh PART [ARGUMENT...] - runs on a machine with a GPU, in a built tree or an unpacked bundle of pack.sh.
#
#   check                   dtrain --check on the GPU
#   tests [PATTERN...]      test programs on the GPU instead of the CPU, ranks sharing it; names that match
#   e2e [NAME...]           end-to-end trainings (tests/e2e_NAME.sh); default cuda and cuda_tasks; or all
#   suite                   tests, e2e cuda and e2e cuda_tasks in parallel
#   sanitizer [TOOL...]     compute-sanitizer (memcheck racecheck synccheck initcheck); ONLY=pattern
#   bench [PART...]         benchmarks (tools/gpu/bench.sh): training steps against PyTorch
#   exec COMMAND...         any program with these libraries: exec build/release/tests/bench_compute
#   all                     check, suite and bench
#
# Logs are in $OUT (default build/gpu); results are printed. JOBS programs run in parallel, each for at
# most LIMIT seconds (default 150), tests on at most MOST_RANKS ranks (default 4).
set -u
cd "$(dirname "$0")/../.." || exit 1
export OUT=$(realpath -m "${OUT:-build/gpu}")
mkdir -p "$OUT"
. tools/gpu/environment.sh
. tools/gpu/jobs.sh
limit=${LIMIT:-150} # the program's own limit, ten seconds less, reports its progress
export DTRAIN_DEVICE=${DTRAIN_DEVICE-cuda} GPU_NEEDED=1 # tests for "the CPU" use the GPU

machine() {
    ! command -v nvidia-smi >/dev/null || nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader 2>&1 | head -4
    echo "$(nproc --all) cores, $(uname -sr), glibc $(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2); ./dtrain: $(./dtrain --version 2>&1 | head -1)$([ ! -e runtime/packed ] || tr '\n' ' ' <runtime/packed | sed 's/^/ packed /')"
    echo "CUDA libraries:${cuda_path:-: none found}; PyTorch: ${PYTHON:-none}; date $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    ldd "$BUILD/libdtrain_cuda.so" | grep 'not found'
    true
}

matches() { # NAME PATTERN...: true without a pattern, or if the name contains one
    local name=$1 p
    shift
    [ $# -gt 0 ] || return 0
    for p; do case $name in *"$p"*) return 0 ;; esac; done
    return 1
}

ranks_of() { sed -n 's|^[/ *]*NP: *\([0-9 ]*\).*|\1|p; $s|.*|1 2 3 4|p' "$1" | head -1; } # SOURCE
# List programs that use a device, longest first: several ranks before one, most ranks first.
list_tests() {
    local source name np counts
    for np in 8 4 3 2 1; do
        for source in tests/mpi_*.c; do
            name=$(basename "$source" .c)
            matches "$name" "$@" && grep -q 'DEVICES:' "$source" || continue
            case " $(ranks_of "$source") " in *" $np "*) ;; *) continue ;; esac
            [ "$np" -le "${MOST_RANKS:-4}" ] || continue # ranks share one GPU
            echo "$name on $np|$limit|NP=$np TEST_TIMEOUT=$((limit - 10)) tests/run.sh $source"
        done
    done
    for source in $(grep -l 'TRANSPORTS:.*nccl' tests/mpi_*.c); do
        name=$(basename "$source" .c)
        matches "$name" "$@" || continue
        for np in $(ranks_of "$source"); do # NCCL requires one GPU per rank
            [ "$np" -gt "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" ] || echo "$name by NCCL on $np|$limit|DTRAIN_COMM=nccl NP=$np TEST_TIMEOUT=$((limit - 10)) tests/run.sh $source"
        done
    done
    for source in tests/test_*.c; do
        name=$(basename "$source" .c)
        matches "$name" "$@" && grep -q 'DEVICES:' "$source" || continue
        echo "$name|$limit|TEST_TIMEOUT=$((limit - 10)) tests/run.sh $source"
    done
}
run_tests() {
    list_tests "$@" | run_jobs tests
}

list_e2e() { # NAME...: cuda and cuda_tasks (default) compare devices; the others are CPU tests on the GPU; all
    local name
    [ "${1:-}" != all ] || set -- cuda cuda_tasks train resume generate errors convert fp16 rm dpo rollout grpo ppo rewards lora peft quantised_base recommend \
        vision vision_cache vision_files vision_generate
    [ $# -gt 0 ] || set -- cuda cuda_tasks
    for name; do echo "e2e_$name|560|TEST_TIMEOUT=280 tests/run.sh tests/e2e_$name.sh"; done
}
run_e2e() { list_e2e "$@" | run_jobs e2e; }
run_suite() { { list_e2e; list_tests; } | run_jobs suite; }

run_sanitizer() {
    local tool t status=0 tools=${*:-memcheck racecheck}
    for tool in $tools; do
        for t in tests/test_device_*.c tests/test_model_reference.c; do
            t=$(basename "$t" .c)
            matches "$t" ${ONLY:-} || continue
            [ "$t" != test_device_queue ] || continue
            echo "$tool $t|$limit|compute-sanitizer --tool $tool --error-exitcode 9 --print-limit 20 --launch-timeout 0 $BUILD/tests/$t"
        done
    done | LINES_SHOWN=${LINES_SHOWN:-24} run_jobs sanitizer || status=1
    grep -aE '^=== |ERROR SUMMARY|RACECHECK SUMMARY' "$OUT/sanitizer.log"
    return $status
}

run_check() {
    local work status
    work=$(mktemp -d)
    cat >"$work/check.ini" <<INI
[run]
device = cuda
[model]
model_type = llama
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 2
vocab_size = 257
max_position_embeddings = 64
[data]
train = $work/check.h5
seq_len = 32
INI
    ./dtrain-data -q -o "$work/check.h5" README.md >/dev/null && timeout -k 5 "$limit" ./dtrain --check "$work/check.ini" run.output_dir="$work/run" 2>&1 | tee "$OUT/check.log"
    status=${PIPESTATUS[0]}
    rm -rf "$work"
    return "$status"
}

part=${1:-all}
shift $(($# > 0))
begin=$SECONDS status=0
machine
case $part in
check) run_check || status=1 ;;
tests) run_tests "$@" || status=1 ;;
e2e) run_e2e "$@" || status=1 ;;
suite) run_suite || status=1 ;;
exec) unset DTRAIN_DEVICE OMP_NUM_THREADS; "$@" || status=1 ;;
bench) tools/gpu/bench.sh "$@" || status=1 ;;
sanitizer) run_sanitizer "$@" || status=1 ;;
all)
    run_check || status=1
    run_suite || status=1
    tools/gpu/bench.sh || status=1 ;;
*) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" | head -16; exit 64 ;;
esac
echo "$part: $((SECONDS - begin)) s, logs in $OUT"
exit $status

#!/bin/bash
# run.sh [PATTERN] - run all that was built for the tests and count (tests/NAME.c: that program alone). Ends with one line "N passed, M failed, K skipped".
#
#   BUILD/tests/test_*   cmocka, one process
#   BUILD/tests/mpi_*    cmocka under mpirun, at 1 2 3 4 ranks, or at those in a line "// NP: 1 2 8" of its source, or in NP
#   BUILD/tests/fuzz/*   replay of the corpus tests/data/fuzz/NAME
#   tests/e2e_*.sh       print "ok NAME", "not ok NAME: why", "skip NAME: why" lines
#
# With a line "DEVICES: cpu queue" in its source a cmocka program runs once on each of these devices (src/device/queue.c; seeds in
# QUEUE_SEEDS, default 0 and 1 for one process, 1 for several; QUEUE_ONLY leaves out the rest). DTRAIN_DEVICE=queue in the environment puts everything on the queue device.
#
# A case is what cmocka calls a test, or one of those lines. A crash or a timeout is a failed case. Output of what passes is not shown.
set -u
cd "$(dirname "$0")/.." || exit 1
export BUILD=${BUILD:-build/release} TEST_TIMEOUT=${TEST_TIMEOUT:-900}
. tests/environment.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
keep_mpi_files_in "$work"
export TEST_RESULTS=$work/results # where a test's rank 0 writes (NP > 0)
passed=0 failed=0 skipped=0

if [ -n "${VALGRIND:-}" ]; then
    command -v valgrind >/dev/null || { echo "valgrind is not installed"; exit 69; }
    valgrind="valgrind -q --suppressions=tests/valgrind.supp --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite"
    valgrind="$valgrind --show-leak-kinds=definite"
    TEST_TIMEOUT=$((TEST_TIMEOUT * 6))
else valgrind=; fi

# cmocka writes results to stdout, failures and what was skipped once more to stderr. Under mpirun only rank 0's results count, and go to the
# file TEST_RESULTS: a launcher may pass a rank's stdout on as stderr (tests/mpi_test.h).
count_cmocka() { # status
    local n ok skip
    if [ -s "$TEST_RESULTS" ]; then cat "$TEST_RESULTS" >>"$work/out"; fi
    n=$(awk '/Running [0-9]+ test\(s\)/ { for (i = 1; i < NF; i++) if ($i == "Running") n += $(i + 1) } END { print n + 0 }' "$work/out")
    ok=$(grep -ac '^\[       OK \]' "$work/out")
    skip=$(awk '/Running [0-9]+ test\(s\)/ { on = 1 } /test\(s\) run\./ { on = 0 } on && /^\[  SKIPPED \]/ { n++ } END { print n + 0 }' "$work/out")
    bad=$((n - ok - skip))
    if [ "$1" != 0 ] && [ "$bad" -le 0 ]; then bad=1; fi
    if [ "$n" = 0 ]; then bad=1; fi
    passed=$((passed + ok)) skipped=$((skipped + skip)) failed=$((failed + bad))
}

count_lines() { # status
    local ok
    ok=$(grep -ac '^ok ' "$work/out")
    bad=$(grep -ac '^not ok ' "$work/out")
    passed=$((passed + ok)) skipped=$((skipped + $(grep -ac '^skip ' "$work/out")))
    if [ "$1" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    failed=$((failed + bad))
}

cause='^\[(  FAILED  |  ERROR   |   LINE   )\]'
show() { # label status: one line, and the details of a failure
    local seconds verdict=ok
    seconds=$(awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    [ "$bad" = 0 ] || verdict="FAILED ($bad)"
    [ "$2" != 124 ] && [ "$2" != 137 ] || verdict="$verdict, stopped after $TEST_TIMEOUT s"
    printf '%-44s %7s s  %s\n' "$1" "$seconds" "$verdict"
    grep -ah '^skip ' "$work/out" | sed 's/^/    /'
    if [ "$bad" != 0 ]; then
        { grep -ahE "$cause" "$work/out" "$work/err" # which cases and why, before what the program itself has said
          grep -ahvE '^\[(==========| RUN      |       OK |  PASSED  )\]|^ok ' "$work/out" "$work/err" | grep -avE "$cause"; } | head -60 | sed 's/^/    /'
        [ "$2" = 0 ] || echo "    exit status $2"
    fi
}

each() { # counter label command...
    local counter=$1 label=$2 status
    shift 2
    started=$EPOCHREALTIME
    : >"$TEST_RESULTS"
    timeout -k 10 "$TEST_TIMEOUT" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    "$counter" $status
    show "$label" $status
}

wanted() {
    case $1.c in *"$pattern"*) ;; *) return 1 ;; esac
    [ -e "$1" ] && return 0
    case $1 in *'*'*) return 1 ;; esac # a glob without a match
    echo "$1 is not built: make tests-build"
    failed=$((failed + 1))
    return 1
}
# A cmocka program on each device that its source names: label, source, command.
on_devices() {
    local label=$1 source=$2 seed
    shift 2
    [ -n "${QUEUE_ONLY:-}" ] || each count_cmocka "$label" "$@"
    [ -z "${DTRAIN_DEVICE:-}$valgrind" ] && grep -q 'DEVICES:.*queue' "$source" || return 0
    for seed in ${QUEUE_SEEDS:-$seeds}; do each count_cmocka "$label, queue $seed" env DTRAIN_DEVICE=queue DTRAIN_QUEUE_SEED="$seed" "$@"; done
}
# With a line "TRANSPORTS: nccl" once more with NCCL between simulated GPUs.
on_transports() {
    local label=$1 source=$2
    shift 2
    [ -z "${DTRAIN_DEVICE:-}$valgrind${QUEUE_ONLY:-}" ] && grep -q 'TRANSPORTS:.*nccl' "$source" && [ -e "$BUILD/libdtrain_cudasim.so" ] || return 0
    each count_cmocka "$label, nccl simulated" env DTRAIN_DEVICE=cudasim DTRAIN_COMM=nccl "$@"
}
pattern=${1:-}
seeds="0 1" # 0: as late as possible
for source in tests/test_*.c; do
    t=$BUILD/${source%.c}
    wanted "$t" && on_devices "$(basename "$t")" "$source" $valgrind "$t"
done
seeds=1
for source in tests/mpi_*.c; do
    t=$BUILD/${source%.c}
    wanted "$t" || continue
    counts=$(sed -n 's|^[/ *]*NP: *\([0-9 ]*\).*|\1|p' "$source" | head -1)
    if [ -n "$valgrind" ]; then counts=2; fi # slow; the other counts run the same code
    for np in ${NP:-${counts:-1 2 3 4}}; do
        on_devices "$(basename "$t") on $np" "$source" $MPIRUN -np "$np" $valgrind "$t"
        on_transports "$(basename "$t") on $np" "$source" $MPIRUN -np "$np" "$t"
    done
done
[ -n "${QUEUE_ONLY:-}" ] || for source in tests/fuzz/fuzz_*.c; do
    t=$BUILD/${source%.c} name=$(basename "$source" .c)
    wanted "$t" && each count_lines "$name (corpus)" $valgrind "$t" "tests/data/fuzz/${name#fuzz_}"
done
if [ -z "$valgrind${QUEUE_ONLY:-}" ]; then
    for t in tests/e2e_*.sh; do wanted "$t" && TEST_TIMEOUT=$((TEST_TIMEOUT * 4)) each count_lines "$(basename "$t" .sh)" bash "$t"; done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ $((passed + skipped)) -gt 0 ]

#!/bin/bash
# run.sh [PATTERN...] - run the tests that are built, and count. The last line is "N passed, M failed, K skipped".
#
#   BUILD/tests/test_*   cmocka, one process
#   BUILD/tests/mpi_*    cmocka under mpirun, on 1 2 3 4 ranks, on those of a line "// NP: 1 2 8" of the source, or on those in NP
#   BUILD/tests/fuzz/*   replay of the corpus tests/data/fuzz/NAME
#   tests/e2e_*.sh       print "ok NAME", "not ok NAME: why" and "skip NAME: why" lines
#   tests/full_*.sh      campaigns, which print the same lines; with CAMPAIGNS=1 only
#
# PATTERN selects the tests whose name contains it; "NAME.c" selects exactly that program. What is selected runs whole.
#
# TIER=quick (make test) runs every test_* program on the CPU, every mpi_* program on 2 ranks, and the scripts with a line "QUICK:".
# That line can also stand in the source of a program: "QUICK: 2 3 4 queue" runs it on these numbers of ranks and also on the queue
# device; "cudasim" adds the simulated GPU, "none" leaves the program to the full tier. Scripts end at full_only (tests/e2e.sh).
# TIER=full (make test-full, the default) runs everything. SLICE=K/N runs the K-th of N parts of it, counted from 0.
# LIST=1 prints the names of the tests and runs none.
#
# With a line "DEVICES: cpu queue" the full tier also runs a program or script on the queue device (src/backends/queue.c): programs of one
# process with the seeds in QUEUE_SEEDS (0: as late as possible), programs of several ranks on 2 ranks, and scripts, with seed 1 (a random
# order). QUEUE_ONLY=1 runs only these. DTRAIN_DEVICE=queue in the environment puts everything on the queue device.
# With a line "TRANSPORTS: nccl" a program also runs with NCCL between at most four simulated GPUs.
#
# With a line "NEEDS: PCRE2 UTF8PROC" a program or script is skipped in a build without one of these libraries (OPTIONAL in
# tools/mk/config.mk).
#
# A case is one cmocka test, or one of the lines above. A crash and a timeout are failed cases. Only failures show their output.
# TEST_JOBS tests run concurrently (default: one per core, at most four), because tests wait more than they compute. Each has its own
# temporary directory.
set -u
cd "$(dirname "$0")/.." || exit 1
export BUILD=${BUILD:-build/release} TEST_TIMEOUT=${TEST_TIMEOUT:-$([ -n "${CAMPAIGNS:-}" ] && echo 28800 || echo 900)}
. tests/environment.sh
# Threads wait as those of the programs do (src/main/tool/waiting.c): two tests whose threads spin on the same cores take ten times as long.
[ -n "${OMP_WAIT_POLICY:-}" ] || export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-300} KMP_BLOCKTIME=${KMP_BLOCKTIME:-0}
tier=${TIER:-full}
[ $# = 0 ] || tier=full
case $tier in quick | full) ;; *) echo "TIER=$tier: expected quick or full"; exit 64 ;; esac
export FULL=${tier#quick} # e2e.sh: full_only
slice=${SLICE:-} list=${LIST:-} campaigns=${CAMPAIGNS:-}
unset TIER SLICE LIST CAMPAIGNS # tests that start this script choose for themselves
jobs=${TEST_JOBS:-$(nproc)}
[ -n "${TEST_JOBS:-}" ] || [ "$jobs" -le 4 ] || jobs=4
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'stop_all; exit 130' INT TERM
export XDG_CACHE_HOME=$work/cache # of self-checks of GPUs
failed=0 started=0 running=

if [ -n "${VALGRIND:-}" ]; then
    command -v valgrind >/dev/null || { echo "valgrind is not installed"; exit 69; }
    valgrind="valgrind -q --suppressions=tests/valgrind.supp --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite"
    valgrind="$valgrind --show-leak-kinds=definite"
    TEST_TIMEOUT=$((TEST_TIMEOUT * 6))
else valgrind=; fi

# cmocka writes results to stdout, failures and what was skipped once more to stderr. Under mpirun only rank 0's results count, and go to the
# file TEST_RESULTS: a launcher may pass a rank's stdout on as stderr (tests/mpi_test.h).
count_cmocka() { # status
    local n
    if [ -s "$TEST_RESULTS" ]; then cat "$TEST_RESULTS" >>"$job/out"; fi
    n=$(awk '/Running [0-9]+ test\(s\)/ { for (i = 1; i < NF; i++) if ($i == "Running") n += $(i + 1) } END { print n + 0 }' "$job/out")
    good=$(grep -ac '^\[       OK \]' "$job/out")
    skipped=$(awk '/Running [0-9]+ test\(s\)/ { on = 1 } /test\(s\) run\./ { on = 0 } on && /^\[  SKIPPED \]/ { n++ } END { print n + 0 }' "$job/out")
    bad=$((n - good - skipped))
    if [ "$1" != 0 ] && [ "$bad" -le 0 ]; then bad=1; fi
    if [ "$n" = 0 ]; then bad=1; fi
}

count_lines() { # status
    good=$(grep -ac '^ok ' "$job/out")
    bad=$(grep -ac '^not ok ' "$job/out")
    skipped=$(grep -ac '^skip ' "$job/out")
    if [ "$1" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
}

cause='^\[(  FAILED  |  ERROR   |   LINE   )\]'
show() { # label status seconds: one line, and the details of a failure
    local verdict=ok
    [ "$bad" = 0 ] || verdict="FAILED ($bad)"
    [ "$2" != 124 ] && [ "$2" != 137 ] || verdict="$verdict, stopped after $TEST_TIMEOUT s"
    printf '%-44s %7s s  %s\n' "$1" "$3" "$verdict"
    grep -ah '^skip ' "$job/out" | sed 's/^/    /'
    if [ "$bad" != 0 ]; then
        { grep -ahE "$cause" "$job/out" "$job/err" # which cases and why, before what the program itself has said
          grep -ahvE '^\[(==========| RUN      |       OK |  PASSED  )\]|^ok ' "$job/out" "$job/err" | grep -avE "$cause"; } | head -60 | sed 's/^/    /'
        [ "$2" = 0 ] || echo "    exit status $2"
    fi
}

run_job() { # counter label command...: leaves what is to be shown, and the counts last
    local counter=$1 label=$2 begun=$EPOCHREALTIME status seconds good=0 bad=0 skipped=0
    shift 2
    export TEST_RESULTS=$job/results # where a test's rank 0 writes
    keep_mpi_files_in "$job"
    timeout -k 10 "$TEST_TIMEOUT" "$@" >"$job/out" 2>"$job/err" </dev/null
    status=$?
    seconds=$(awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    "$counter" $status
    show "$label" $status "$seconds" >"$job/shown"
    echo "$good $bad $skipped" >"$job/counts.part" && mv "$job/counts.part" "$job/counts"
}

in_slice() { # label
    [ -n "$slice" ] || return 0
    [ $(($(cksum <<<"$1" | cut -d' ' -f1) % ${slice#*/})) = "${slice%/*}" ]
}

each() { # counter label command...: starts it when fewer than TEST_JOBS run
    in_slice "$2" || return 0
    if [ -n "$list" ]; then echo "$2"; return; fi
    local job=$work/$((started += 1))
    while [ "$(wc -w <<<"$running")" -ge "$jobs" ]; do show_ended; done
    mkdir "$job"
    set -m # with a group of its own it hears signals, and can be stopped with all that it started
    run_job "$@" &
    set +m
    running="$running $!:$job"
}

show_ended() { # those that have ended, or the next one that does
    local one still=
    for one in $running; do
        if kill -0 "${one%%:*}" 2>/dev/null; then still="$still $one"; else end_job "${one#*:}"; fi
    done
    if [ "$running" = "$still" ]; then wait -n; fi
    running=$still
}

end_job() { # folder
    local good=0 bad=1 skipped=0
    if [ -e "$1/counts" ]; then
        read -r good bad skipped <"$1/counts"
        cat "$1/shown"
    else echo "a test ended without a result: $1"; fi
    echo "$good $bad $skipped" >>"$work/counts"
    rm -rf "$1"
}

stop_all() { # each job by the timeout that it runs under, which passes the signal on
    local one
    for one in $running; do pkill -TERM -P "${one%%:*}"; done
}

wanted() {
    local pattern found=
    for pattern in "${patterns[@]}"; do case $1.c in *"$pattern"*) found=1 ;; esac; done
    [ -n "$found" ] || return 1
    [ -e "$1" ] || [ -n "$list" ] && return 0
    case $1 in *'*'*) return 1 ;; esac # a glob without a match
    echo "$1 is not built: make tests-build"
    failed=$((failed + 1))
    return 1
}
# Is it skipped because the build has not all the libraries that it needs?
lacks_library() { # label source
    local library
    for library in $(sed -n 's|^[/ #*]*NEEDS: *\([A-Z0-9 ]*\).*|\1|p' "$2" | head -1); do
        has "$components" "$library" || { each count_lines "$1" echo "skip $1: this build has no $library"; return 0; }
    done
    return 1
}
quick_words() { sed -n 's|^[/# ]*QUICK:\(.*\)|\1 |p' "$1" | head -1; } # of a source
has() { case " $1 " in *" $2 "*) return 0 ;; *) return 1 ;; esac; } # words word
# Does this tier run this program or script on DEVICE (queue, cudasim, nccl)?
also_on() { # source device
    [ -z "${DTRAIN_DEVICE:-}$valgrind" ] || return 1
    if [ $tier = quick ]; then has "$(quick_words "$1")" "$2"; else grep -q "\(DEVICES\|TRANSPORTS\):.*$2" "$1"; fi
}
# A test on each of its devices: counter, label, source, command.
on_devices() {
    local counter=$1 label=$2 source=$3 seed every=${TEST_EVERY:-1} # of the cases (tests/cases.h)
    shift 3
    case $tier$label in quicktest_device_*) every=${TEST_EVERY:-3} ;; esac
    [ -n "${QUEUE_ONLY:-}" ] || each "$counter" "$label" env TEST_EVERY="$every" "$@"
    if also_on "$source" cudasim && [ -e "$BUILD/libdtrain_cudasim.so" ]; then
        each "$counter" "$label, simulated GPU" env DTRAIN_DEVICE=cudasim TEST_EVERY="${TEST_EVERY:-3}" "$@"
    fi
    also_on "$source" queue && [ "$np" = "$np_queue" ] || return 0
    for seed in $seeds; do # whose operations are the CPU's: some cases of each
        each "$counter" "$label, queue $seed" env DTRAIN_DEVICE=queue DTRAIN_QUEUE_SEED="$seed" TEST_EVERY="${TEST_EVERY:-17}" "$@"
    done
}
# And with NCCL.
on_transports() { # label source command...
    local label=$1 source=$2
    shift 2
    [ "$np" -le 4 ] && [ -z "${QUEUE_ONLY:-}" ] && also_on "$source" nccl && [ -e "$BUILD/libdtrain_cudasim.so" ] || return 0
    each count_cmocka "$label, nccl simulated" env DTRAIN_DEVICE=cudasim DTRAIN_COMM=nccl "$@"
}
# The numbers of ranks of a program.
rank_counts() { # source
    local counts quick
    counts=$(sed -n 's|^[/ *]*NP: *\([0-9 ]*\).*|\1|p' "$1" | head -1)
    counts=${counts:-1 2 3 4}
    if [ -n "$valgrind" ]; then counts=2 # slow; the other counts run the same code
    elif [ $tier = quick ]; then
        quick=$(quick_words "$1" | tr -cd '0-9 ')
        if has "$counts" 2; then counts=2; fi
        if [ -n "${quick// /}" ]; then counts=$quick; fi
    fi
    echo "${NP:-$counts}"
}
patterns=("${@:-}")
components=$(cat "$BUILD/components" 2>/dev/null)
np=1 np_queue=1
seeds=${QUEUE_SEEDS:-0} # as late as possible
for source in tests/test_*.c; do
    t=$BUILD/${source%.c}
    if [ $tier = quick ] && has "$(quick_words "$source")" none; then continue; fi
    wanted "$t" || continue
    lacks_library "$(basename "$t")" "$source" || on_devices count_cmocka "$(basename "$t")" "$source" $valgrind "$t"
done
seeds=${QUEUE_SEEDS:-1}
for source in tests/mpi_*.c; do
    t=$BUILD/${source%.c}
    if [ $tier = quick ] && has "$(quick_words "$source")" none; then continue; fi
    wanted "$t" || continue
    lacks_library "$(basename "$t")" "$source" && continue
    counts=$(rank_counts "$source")
    case " $counts " in *" 2 "*) np_queue=2 ;; *) np_queue=$(printf '%s\n' $counts | sort -n | awk '$1 > 1 || !n { n = $1 } END { print n }') ;; esac
    for np in $counts; do
        on_devices count_cmocka "$(basename "$t") on $np" "$source" $MPIRUN -np "$np" $valgrind "$t"
        on_transports "$(basename "$t") on $np" "$source" $MPIRUN -np "$np" "$t"
    done
done
[ -n "${QUEUE_ONLY:-}" ] || for source in tests/fuzz/fuzz_*.c; do
    t=$BUILD/${source%.c} name=$(basename "$source" .c)
    wanted "$t" || continue
    lacks_library "$name (corpus)" "$source" || each count_lines "$name (corpus)" $valgrind "$t" "tests/data/fuzz/${name#fuzz_}"
done
seeds=1 np=1 np_queue=1
if [ -z "$valgrind" ]; then
    TEST_TIMEOUT=$((TEST_TIMEOUT * 4))
    for t in tests/e2e_*.sh; do
        [ $tier = full ] || grep -q '^# QUICK:' "$t" || continue
        wanted "$t" || continue
        lacks_library "$(basename "$t" .sh)" "$t" || on_devices count_lines "$(basename "$t" .sh)" "$t" bash "$t"
    done
    [ -z "$campaigns" ] || for t in tests/full_*.sh; do wanted "$t" && each count_lines "$(basename "$t" .sh)" bash "$t"; done
fi
if [ -n "$list" ]; then exit; fi
while [ -n "$running" ]; do show_ended; done
[ ! -e "$work/counts" ] || read -r passed bad skipped < <(awk '{ p += $1; f += $2; s += $3 } END { print p, f, s }' "$work/counts")
failed=$((failed + ${bad:-0}))
echo "${passed:-0} passed, $failed failed, ${skipped:-0} skipped"
[ "$failed" = 0 ] && [ $((${passed:-0} + ${skipped:-0})) -gt 0 ]

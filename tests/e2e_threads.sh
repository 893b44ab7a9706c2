#!/bin/bash
# e2e_threads.sh - threads and cores: how long threads wait, how many threads run, and messages about unused cores.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
unset OMP_WAIT_POLICY GOMP_SPINCOUNT KMP_BLOCKTIME OMP_NUM_THREADS SLURM_CPUS_PER_TASK SLURM_CPUS_ON_NODE
sed -i 's/^threads = .*/threads = 0/' "$tmp/tiny.ini"
check() { run 0 env "$@" ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/x"; }

if ldd ./dtrain | grep -q libgomp; then # the library prints what it was started with
    prints "waiting threads spin briefly" "GOMP_SPINCOUNT = '3000'" check OMP_DISPLAY_ENV=verbose
    prints "the user's count wins" "GOMP_SPINCOUNT = '77'" check OMP_DISPLAY_ENV=verbose GOMP_SPINCOUNT=77
    prints "the user's policy wins" "GOMP_SPINCOUNT = '0'" check OMP_DISPLAY_ENV=verbose OMP_WAIT_POLICY=passive
fi

run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/x" run.threads=4096
cores=$(getconf _NPROCESSORS_ONLN)
if [ "$cores" -lt 256 ]; then
    expect_exit "4096 threads are refused" 64
    expect_text "the maximum number of threads is reported" "run.threads: expected at most $((16 * cores)) threads on a machine of $cores core"
fi
allowed=$(nproc)
run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/x" run.threads=$((allowed + 1))
expect_text "more threads than cores: a warning" "warning: .*run.threads: $((allowed + 1)) threads will compete for the $allowed core"
prints "SLURM_CPUS_PER_TASK is honoured" ", 1 thread," check SLURM_CPUS_PER_TASK=1

first=$(taskset -cp $$ | sed 's/.*: *//; s/[-,].*//')
ends "four ranks on one core" 0 run 0 taskset -c "$first" $MPIRUN -np 4 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/x"
is "are warned of, once" "$(grep -c 'warning: 4 ranks with 1 thread each share 1 core on .*: start at most 1 rank there' "$out")" 1
run 0 taskset -c "$first" $MPIRUN -np 2 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/x" run.threads=2
expect_text "the warning names ranks and threads" "rank 0 .*warning: 2 ranks with 2 threads each share 1 core on $(hostname), which slows down all of them"
if [ "$allowed" -gt 1 ]; then
    run 2 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/x"
    expect "ranks that have a core each are not warned of" sh -c "! grep -q 'warning: .* share ' '$out'"
    run $allowed ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/x" run.threads=2
    expect_text "more threads than cores on a node: how many would do" "$allowed ranks with 2 threads each share $allowed cores on .*use 1 thread per rank"
    run 0 $MPIRUN -np 2 taskset -c "$first" ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/x"
    expect_text "ranks that were bound to one core of several: how to start them" "2 ranks with 1 thread each share 1 core on .*the job has $allowed cores there.*--bind-to none"
fi

if [ "$allowed" -gt 1 ]; then
    prints "the affinity mask is honoured" ", 1 thread," run 0 taskset -c "$first" ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/x"
    if grep -q "cores .* are used" "$out"; then not_ok "who binds a program by hand is not warned" "$(cat "$out")"; else ok "who binds a program by hand is not warned"; fi
    # mpirun binds a rank to one core, as Open MPI does with one and two ranks
    run 1 env OMPI_MCA_hwloc_base_binding_policy=core PRTE_MCA_hwloc_default_binding_policy=core ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/x"
    if grep -q ", 1 thread," "$out"; then
        expect_text "idle cores are named, with what to do" "only 1 of the job.s $allowed cores on .* bound each rank to 1\. .*--bind-to none.*--cpus-per-task=$allowed"
    else skip "idle cores are named" "this launcher does not bind ranks to cores"; fi
fi
e2e_done

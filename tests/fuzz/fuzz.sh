#!/bin/bash
# fuzz.sh FOLDER SECONDS - run every fuzz target in FOLDER for so long, starting from the kept inputs. A finding is printed with the
# path of the input that shows it and makes the exit status 1.
set -u
cd "$(dirname "$0")/../.." || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
status=0
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c) target=$1/$(basename "$source" .c) kept=tests/data/fuzz/$(basename "$source" .c | sed s/^fuzz_//)
    found=$1/$name.corpus
    mkdir -p "$found" "$kept"
    if "$target" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 -max_len=20000 -print_final_stats=1 \
        -artifact_prefix="$1/$name-" "$found" "$kept" >"$1/$name.log" 2>&1; then
        printf '%-24s ok, %s runs, %s inputs kept\n' "$name" "$(sed -n 's/stat::number_of_executed_units: *//p' "$1/$name.log")" "$(ls "$found" | wc -l)"
    else
        printf '%-24s FAILED\n' "$name"
        tail -40 "$1/$name.log" | sed 's/^/    /'
        status=1
    fi
done
exit $status

#!/bin/bash
# bench.sh [PATTERN] - runs the benchmarks build/.../tests/bench_* and tests/bench_*.sh one after
# another; each prints its own table.
set -u
cd "$(dirname "$0")/.." || exit 1
export BUILD=${BUILD:-build/release}
. tests/environment.sh
status=0
for source in tests/bench_*.c tests/bench_*.sh; do
    case $source in *"${1:-}"*) [ -e "$source" ] || continue ;; *) continue ;; esac
    ! grep -q 'bench_[a-z]* \[device' "$source" || continue # runs on any device: see make bench-gpu
    echo "== $(basename "${source%.*}")"
    case $source in
    *.sh) bash "$source" || status=1 ;;
    *) counts=$(sed -n 's|^[/ *]*NP: *\([0-9 ]*\).*|\1|p' "$source" | head -1)
       if [ -z "$counts" ]; then "$BUILD/${source%.c}" || status=1; fi
       for np in $counts; do $MPIRUN -np "$np" "$BUILD/${source%.c}" || status=1; done ;;
    esac
done
exit $status

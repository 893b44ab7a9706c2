# e2e.sh - functions for end-to-end tests of the programs: `. "$(dirname "$0")/e2e.sh"` at the top of tests/e2e_NAME.sh.
#
#   run NP COMMAND...            runs it (under mpirun where NP > 0); sets $code; both outputs are in the file $out
#   expect_exit NAME CODE        is $code CODE? one result line
#   ends NAME CODE COMMAND...    runs a command that sets $code and $out (run 2 ./dtrain ..., train 2 DIR ...), then expect_exit
#   prints NAME REGEX COMMAND...   the same with expect_text
#   ends_saying NAME CODE REGEX COMMAND...   both in one result line
#   expect_text NAME REGEX       does the output match REGEX (grep -E)? one result line
#   expect NAME COMMAND...       does a command succeed? one result line
#   is NAME FOUND EXPECTED       are these texts equal, and not blank? one result line
#   alike A B                    the same as a command
#   near NAME FOUND EXPECTED TOLERANCE    are these positive numbers equal to relative TOLERANCE? one result line
#   wrong NAME CODE REGEX COMMAND...   does it exit with CODE, on two ranks, with one line that matches? one result line
#   wait_for COMMAND...          waits until it succeeds; a failed case after WAIT_TIMEOUT seconds
#   own_mpi_files                a separate folder for the files of the next mpirun (run calls it)
#   beside FUNCTION ARGS...      runs it in a subshell concurrently, with its own $code and $out;
#   beside_end                   prints their result lines, in the order of the calls. For cases that mostly wait and use separate directories
#   kill_slowly COMMAND...       when a rank dies, mpirun asks the others to end and kills them two seconds later, not immediately
#   every N COUNT                does this tier run case COUNT, counted from 1? make test and the queue device run every N-th
#   full_only                    the rest of the script runs in make test-full only
#   cpu_only                     the rest of the script does not run on the queue device: it runs no device code of its own
#   ok NAME, not_ok NAME WHY, skip NAME WHY
#
# $tmp is an empty directory, removed at the end. The working directory is the top of the tree or a folder of links to it: ./dtrain and the
# tools are those of $BUILD. Exit status: 1 after any "not ok".
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. tests/environment.sh
tmp=$(mktemp -d) || exit 1
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$tmp"' EXIT
trap 'exit 1' TERM INT HUP # stopping a script also stops its runs
mkdir "$tmp/.mpi"
export XDG_CACHE_HOME=$tmp/.cache # of self-checks of GPUs
# If the programs at the top are of another build, the tests run in a folder of links to the programs of $BUILD.
use_programs_of() { # BUILD
    local f tree=$tmp/.tree
    ! cmp -s dtrain "$1/dtrain" || return 0
    mkdir "$tree"
    for f in "$PWD"/* "$PWD"/.[!.]*; do ln -s "$f" "$tree/"; done
    for f in "$1"/dtrain "$1"/dtrain-*; do [ -d "$f" ] || ln -sfT "$(realpath "$f")" "$tree/${f##*/}"; done
    cd "$tree" || exit 1
}
use_programs_of "${BUILD:-build/release}"
export PYTHONPATH=$PWD/tests${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 # fixtures.py
out=$tmp/.out code=0 n_not_ok=0

ok() { echo "ok $1"; }
skip() { echo "skip $1: $2"; }
not_ok() {
    echo "not ok $1: $2"
    [ ! -s "$out" ] || tail -15 "$out" | sed 's/^/    | /'
    n_not_ok=$((n_not_ok + 1))
}

# An mpirun that ends may remove a folder that the next or a concurrent mpirun has just looked up.
own_mpi_files() { keep_mpi_files_in "$(mktemp -d "$tmp/.mpi/XXXXXX")"; }
own_mpi_files

run() {
    local np=$1
    shift
    own_mpi_files
    if [ "$np" -gt 0 ]; then set -- $MPIRUN -np "$np" "$@"; fi
    timeout -k 5 "${RUN_TIMEOUT:-240}" "$@" >"$out" 2>&1 </dev/null
    code=$?
}
wait_for() {
    local end=$((SECONDS + ${WAIT_TIMEOUT:-240}))
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $end ]; then not_ok "waiting for: $*" "it did not come"; return 1; fi
        sleep 0.05
    done
}
besides=()
beside() {
    local n=${#besides[@]}
    (out=$tmp/.out.$n n_not_ok=0; "$@"; e2e_done) >"$tmp/.beside.$n" 2>&1 &
    besides+=($!)
}
beside_end() {
    local n
    for n in "${!besides[@]}"; do
        wait "${besides[n]}" || n_not_ok=$((n_not_ok + 1))
        cat "$tmp/.beside.$n"
    done
    besides=()
}
kill_slowly() { OMPI_MCA_odls_base_sigkill_timeout=2 PRTE_MCA_odls_base_sigkill_timeout=2 "$@"; }
expect_exit() { if [ "$code" = "$2" ]; then ok "$1"; else not_ok "$1" "exit code $code, expected $2"; fi; }
expect_text() { if grep -qE -- "$2" "$out"; then ok "$1"; else not_ok "$1" "no line matches $2"; fi; }
ends() { local ends_name=$1 ends_code=$2; shift 2; code=none; "$@"; expect_exit "$ends_name" "$ends_code"; } # variable names that no command uses
prints() { local prints_name=$1 prints_regex=$2; shift 2; "$@"; expect_text "$prints_name" "$prints_regex"; }
ends_saying() {
    local saying_name=$1 saying_code=$2 saying_regex=$3
    shift 3
    "$@"
    if [ "$code" != "$saying_code" ]; then expect_exit "$saying_name" "$saying_code"; else expect_text "$saying_name" "$saying_regex"; fi
}
expect() {
    local name=$1
    shift
    if "$@" >"$tmp/.expect" 2>&1; then ok "$name"; else not_ok "$name" "failed: $* $(head -3 "$tmp/.expect")"; fi
}
alike() { [[ $1 == *[![:space:]]* && $1 == "$2" ]]; } # two missing numbers are not equal
is() { if alike "$2" "$3"; then ok "$1"; else not_ok "$1" "found '$2', expected '$3'"; fi; }
near() { # a field that is not a number counts as 0
    expect "$1" awk -v a="$2" -v b="$3" -v tol="$4" 'BEGIN { d = a - b; bad = !(a + 0 > 0 && b + 0 > 0 && d <= tol * b && -d <= tol * b); if (bad) print a, b; exit bad }'
}
wrong() {
    local name=$1 want=$2 regex=$3
    shift 3
    run 2 "$@"
    if [ "$code" != "$want" ]; then not_ok "$name" "exit code $code, expected $want"
    elif [ "$(grep -cE -- "$regex" "$out")" != 1 ]; then not_ok "$name" "expected one line with $regex"
    else ok "$name"; fi
}
every() { { [ -n "${FULL-full}" ] && [ "${DTRAIN_DEVICE:-}" != queue ]; } || [ $(($2 % $1)) = $((1 % $1)) ]; } # N COUNT
full_only() { [ -n "${FULL-full}" ] || { e2e_done; exit; }; } # make test ends a script here
cpu_only() { [ "${DTRAIN_DEVICE:-}" != queue ] || { e2e_done; exit; }; }
e2e_done() { [ "$n_not_ok" = 0 ]; } # the last line of a script: e2e_done

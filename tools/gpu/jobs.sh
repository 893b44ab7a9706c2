# jobs.sh - sourced by run.sh: runs many programs in parallel, each with its own time limit, so that
# a hung program does not delay the others.
#
#   run_jobs PART <jobs      input lines "name|seconds|command"; JOBS in parallel (default: a quarter of the
#                            cores, because many have four ranks, which spin while they wait). Prints a line
#                            per program as it ends, then the failed cases with their output. All output is
#                            appended to $OUT/PART.log. Status 0: all passed.

# Failed cases and their reasons first, then other output of the program.
shorten() { # FILE
    { grep -aE '^ *(\[  (FAILED|ERROR|ABORTED)|\[   LINE|not ok)' "$1"
      grep -avE '^ *\[(==========| RUN      |       OK |  PASSED  )\]|^ *(ok|not ok) |FAILED TEST|^ *\[  (FAILED|ERROR|SKIPPED)|^ *\[   LINE|^ *-*$' "$1"; } |
        awk '!seen[$0]++' | head -n "${LINES_SHOWN:-12}" | cut -c 1-200
}
run_one() { # FOLDER LINE: writes the output and the verdict of a program to two files
    local folder=$1 name seconds command begin=$EPOCHREALTIME status verdict
    IFS='|' read -r name seconds command <<<"$2"
    local file=$folder/${name//[^A-Za-z0-9_.-]/_}
    timeout -k 5 "$seconds" bash -c "$command" >"$file.out" 2>&1 </dev/null
    status=$?
    verdict=ok
    [ $status = 0 ] || verdict="FAILED, status $status"
    [ $status != 124 ] && [ $status != 137 ] || verdict="STOPPED after $seconds s"
    awk -v n="$name" -v a="$begin" -v b="$EPOCHREALTIME" -v v="$verdict" -v c="$(grep -aoE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$file.out" | tail -1)" \
        'BEGIN { printf "%-34s %6.1f s  %s%s\n", n, b - a, v, c ? "  (" c ")" : "" }' >"$file.verdict"
    cat "$file.verdict"
    { flock 9 2>/dev/null; { echo "=== $(cat "$file.verdict")"; cat "$file.out"; echo; } >>"$LOG"; } 9>>"$LOG"
}
export -f run_one

run_jobs() {
    local folder failed=0 n=0 v jobs=${JOBS:-$((($(nproc --all) + 3) / 4))} # --all: nproc would use OMP_NUM_THREADS
    folder=$(mktemp -d)
    tr '\n' '\0' | LOG=$OUT/$1.log xargs -0 -P "$jobs" -I{} bash -c 'run_one "$@"' bash "$folder" {}
    for v in "$folder"/*.verdict; do
        [ -e "$v" ] || continue
        n=$((n + 1))
        grep -q '  ok' "$v" && continue
        failed=$((failed + 1))
        echo "--- $(cat "$v")"
        shorten "${v%.verdict}.out"
    done
    echo "$1: $((n - failed)) of $n programs passed, $jobs at a time; cases: $(grep -ahE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$folder"/*.out |
        awk '{ p += $1; f += $3; s += $5 } END { printf "%d passed, %d failed, %d skipped", p, f, s }')"
    for v in "$folder"/*.verdict; do grep -q '  ok' "$v" || sed 's/^/    /' "$v"; done
    rm -rf "$folder"
    [ $failed = 0 ] && [ $n -gt 0 ]
}

# jobs.sh - sourced by run.sh: many programs beside each other, each with a time of its own, so that one that hangs costs itself alone.
#
#   run_jobs PART <jobs      a line "name|seconds|command" each; JOBS at a time (default: half of the cores). One line for each as it ends, then what
#                            those that failed wrote, shortened, then a summary. All output goes to $OUT/PART.log. Status 0: all passed.
run_one() { # FOLDER LINE: its output, and its verdict in a file of its own
    local folder=$1 name seconds command begin=$EPOCHREALTIME status verdict
    IFS='|' read -r name seconds command <<<"$2"
    local file=$folder/${name//[^A-Za-z0-9_.-]/_}
    timeout -k 5 "$seconds" bash -c "$command" >"$file.out" 2>&1 </dev/null
    status=$?
    verdict=ok
    [ $status = 0 ] || verdict="FAILED, status $status"
    [ $status != 124 ] && [ $status != 137 ] || verdict="STOPPED after $seconds s"
    awk -v n="$name" -v a="$begin" -v b="$EPOCHREALTIME" -v v="$verdict" -v c="$(grep -aoE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$file.out" | tail -1)" \
        'BEGIN { printf "%-34s %6.1f s  %s%s\n", n, b - a, v, c ? "  (" c ")" : "" }' | tee "$file.verdict"
}
export -f run_one

run_jobs() {
    local part=$1 folder failed=0 n=0 v
    folder=$(mktemp -d)
    tr '\n' '\0' | xargs -0 -P "${JOBS:-$((($(nproc) + 1) / 2))}" -I{} bash -c 'run_one "$@"' bash "$folder" {}
    for v in "$folder"/*.verdict; do
        [ -e "$v" ] || continue
        n=$((n + 1))
        { echo "=== $(cat "$v")"; cat "${v%.verdict}.out"; echo; } >>"$OUT/$part.log"
        grep -q '  ok' "$v" && continue
        failed=$((failed + 1))
        echo "--- $(cat "$v")"
        grep -avE '^\[(==========| RUN      |       OK |  PASSED  )\]|^ok |^ok$' "${v%.verdict}.out" | grep -av '^$' | head -n "${LINES_SHOWN:-14}" | cut -c 1-220
    done
    echo "$part: $((n - failed)) of $n programs passed; cases: $(grep -ahE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$folder"/*.out |
        awk '{ p += $1; f += $3; s += $5 } END { printf "%d passed, %d failed, %d skipped", p, f, s }')"
    for v in "$folder"/*.verdict; do grep -q '  ok' "$v" || sed 's/^/    /' "$v"; done
    rm -rf "$folder"
    [ $failed = 0 ] && [ $n -gt 0 ]
}

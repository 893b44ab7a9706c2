# measure.sh - sourced by benchmarks that measure steps of a run, and those of a peer.

# On a GPU machine Python has libraries of its own (tools/gpu/environment.sh).
plainly() { env LD_LIBRARY_PATH="${PLAIN_PATH-${LD_LIBRARY_PATH:-}}" "$@"; }

# A run that ends by itself saves a checkpoint, which may take longer than its steps. Runs COMMAND, both outputs to LOG, until DIR/metrics.jsonl has LINES lines, and ends it. Status 1: it ended before, or SECONDS were over.
until_steps() { # DIR LINES SECONDS LOG COMMAND...
    local dir=$1 lines=$2 end=$((SECONDS + $3)) log=$4 job n=0
    shift 4
    rm -rf "$dir"
    "$@" checkpoint.save_steps=0 checkpoint.save_on_signal=false log.report_to=jsonl </dev/null >"$log" 2>&1 &
    job=$!
    until [ "$n" -ge "$lines" ]; do
        if ! kill -0 $job 2>/dev/null || [ $SECONDS -ge "$end" ]; then break; fi
        sleep 0.1
        [ ! -e "$dir/metrics.jsonl" ] || n=$(wc -l <"$dir/metrics.jsonl")
    done
    kill -TERM $job 2>/dev/null
    end=$((SECONDS + 20))
    while kill -0 $job 2>/dev/null && [ $SECONDS -lt $end ]; do sleep 0.1; done
    kill -KILL $job 2>/dev/null
    wait $job 2>/dev/null
    [ "$n" -ge "$lines" ]
}
# The median of a metric in lines FIRST to LAST of DIR/metrics.jsonl
median_of() { # DIR METRIC FIRST LAST
    sed -n "$3,$4p" "$1/metrics.jsonl" | sed -n "s|.*\"$2\": *\([-0-9.e+]*\).*|\1|p" | sort -g | awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : 0 }'
}

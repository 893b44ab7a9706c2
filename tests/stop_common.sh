# stop_common.sh - runs that are stopped and started again: `. "$(dirname "$0")/stop_common.sh"` after train_common.sh.
#
#   stopped_at             the step that the last run was stopped at, by its message; blank: before its first step, or in an evaluation
#   keeps_its_word DIR     after 75: does DIR hold the checkpoint of the step that the message names, and does `latest` name it?
#   like_undisturbed A B   do two runs report the same metrics, apart from times?

stopped_at() { sed -n 's/.*stopped by .* at step \([0-9]*\) of .*/\1/p' "$out"; }
keeps_its_word() {
    local step file
    step=$(stopped_at)
    [ -z "$step" ] && { grep -qE 'stopped by .*(during start-up|of the validation|in the phase|step [0-9]* of [0-9]* was saved)' "$out"; return; }
    file=step-$(printf %08d "$step").h5
    grep -q ', a checkpoint is written' "$out" && [ -s "$tmp/$1/checkpoints/$file" ] && [ "$(cat "$tmp/$1/checkpoints/latest")" = "$file" ]
}
like_undisturbed() { python3 tests/same_metrics.py "$tmp/$1/metrics.jsonl" "$tmp/$2/metrics.jsonl"; }

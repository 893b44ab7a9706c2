#!/bin/bash
# e2e_async.sh - checkpoint.async: training continues while a checkpoint is written. The file matches the one that a synchronous save
# writes. Kills, faults and full disks at any point of the write leave published checkpoints intact.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
steps="run.max_steps=16 checkpoint.save_steps=4 zero.stage=2"
async="$steps checkpoint.async=true"
models_agree() { for f in "$tmp/$1"/checkpoints/step-*.h5; do same_model "$f" "$tmp/$2/checkpoints/${f##*/}" || return 1; done; }
in_order() { awk -v first="$1" -v then="$2" '$0 ~ first { seen = NR } $0 ~ then { exit !seen } END { if (!seen) exit 1 }' "$out"; }

ends "a run with synchronous checkpoints" 0 train 2 whole $steps

ends "a run that does not" 0 train 2 async $async log.trace=true
expect "writes the same checkpoints, bit for bit" models_agree whole async
expect "all of them" sh -c "ls $tmp/async/checkpoints | grep -c 'h5$' | grep -qx 4"
expect "losses match those with synchronous checkpoints" close_losses whole async 0
expect_text "the cost of an asynchronous save is logged" "checkpoint of step 4 written in .* during training, which waited .* s for it \(.*iB per rank copied in"
cost_is_told() { # at least three steps later: so many stages has a save
    sed -n 's/.*"step": \([0-9]*\),.*"save\/step": 4, "save\/bytes": [0-9]*, "save\/copy_time": .*, "save\/stall": .*, "save\/time": .*/\1/p' \
        "$tmp/async/metrics.jsonl" | awk '{ n++; step = $1 } END { exit n != 1 || step < 7 }'
}
expect "the metrics of a later step report the cost once" cost_is_told
plan_of() { ./dtrain --plan --ranks 2 "$tmp/tiny.ini" "$@" | grep '^2 '; }
expect "--plan counts the copy" test "$(plan_of)" != "$(plan_of checkpoint.async=true)"
expect "the writer has a lane of its own in the trace" \
    sh -c "for s in create write publish; do grep -q '\"name\":\"save '\$s'\".*\"tid\":1}' $tmp/async/trace.json || exit 1; done"

# a second save while the first is slow
DTRAIN_FAULT=save.write:1:1:slow ends "a second save while the first is slow" 0 train 2 second run.max_steps=4 checkpoint.save_steps=1 checkpoint.async=true
expect "a save waits for the previous one: all checkpoints exist" test "$(grep -c '^checkpoint of step' "$out") $(ls "$tmp/second/checkpoints" | grep -c 'h5$')" = "4 4"
expect "checkpoints are published in order" in_order "checkpoint of step 1 " "checkpoint of step 2 "

# killed at any point of the write: `latest` names a valid checkpoint, and the run resumes from it
for point in save.copy:1:2 save.create:0:2 save.reserve:0:2 save.write:0:3 save.write:1:40 save.rename:0:2 save.latest:0:2; do
    rm -rf "$tmp/killed"
    DTRAIN_FAULT=$point:kill train 2 killed $async
    [ "$code" != 0 ] || not_ok "killed at $point" "the run did not die"
    [ ! -e "$tmp/killed/checkpoints/latest" ] ||
        expect "killed at $point: the latest checkpoint is valid" ./dtrain-info "$tmp/killed/checkpoints/$(cat "$tmp/killed/checkpoints/latest")"
    train 2 killed $async
    if [ "$code" = 0 ]; then expect "killed at $point and resumed" same_model "$(newest whole)" "$(newest killed)"
    else not_ok "killed at $point and resumed" "exit code $code"; fi
    expect "killed at $point: metrics without gap or repeat" close_losses whole killed 0
    expect "killed at $point: no partial file is left" sh -c "! ls $tmp/killed/checkpoints | grep -q part"
done

full_only

# killed from outside while the writer sleeps, and again, until it comes to its end
rm -rf "$tmp/sweep"
for n in 1 2 3; do
    touch "$tmp/.begin"
    DTRAIN_FAULT=save.write:0:$n:slow,save.write:1:$n:slow,save.rename:0:1:slow start 2 sweep $async
    wait_for sh -c "find $tmp/sweep/checkpoints -newer $tmp/.begin -name 'step-*.part' | grep -q ."
    kill -KILL $(ranks_of sweep) 2>/dev/null
    wait "$job"
    [ ! -e "$tmp/sweep/checkpoints/latest" ] ||
        expect "kill $n: the latest checkpoint is valid" ./dtrain-info "$tmp/sweep/checkpoints/$(cat "$tmp/sweep/checkpoints/latest")"
done
ends "killed three times while writing, and resumed" 0 train 2 sweep $async
expect "a run killed three times ends with the same weights" same_model "$(newest whole)" "$(newest sweep)"

# a writer that fails alone: all ranks learn it in the vote of a step
for fault in save.create:0:2:nospace:74 save.create:1:2:error:70 save.write:1:40:nospace:74 save.write:0:60:error:70 save.rename:0:2:nospace:74 save.latest:0:2:nospace:74; do
    rm -rf "$tmp/failed"
    DTRAIN_FAULT=${fault%:*} ends_saying "one writer fails at ${fault%:*}" "${fault##*:}" "injected by DTRAIN_FAULT" train 2 failed $async
    expect "the previous checkpoint is valid" ./dtrain-info "$tmp/failed/checkpoints/step-00000004.h5"
    expect "the previous checkpoint is the newest" sh -c "grep -q step-00000004 $tmp/failed/checkpoints/latest && ! ls $tmp/failed/checkpoints | grep -qE 'part|step-00000008'"
done
DTRAIN_FAULT=save.write:1:2:hang ends_saying "a writer that hangs: 76" 76 "rank 1 .*no progress.*phase save" train 2 hung $async comm.timeout=5

# what ends a run waits for the writer
DTRAIN_FAULT=save.write:0:1:slow,step.agree:1:6:error ends_saying "an error known to all ranks during a save: 70" 70 "step.agree: a fault injected" train 2 other $async
expect "the checkpoint in flight is published" ./dtrain-info "$(newest other)"
DTRAIN_FAULT=step.agree:0:5:stop,save.write:0:1:slow start 1 stopped $async
stop_at stopped 1 TERM
ends_saying "a signal while a checkpoint is written: 75" 75 "stopped by a signal at step ([0-9]*) of 16, a checkpoint is written" finish stopped
expect "both checkpoints exist" test "$(ls "$tmp/stopped/checkpoints" | grep -c 'h5$')" = 2
DTRAIN_FAULT=step.agree:0:5:stop,save.write:0:1:slow start 1 pending $async checkpoint.save_on_signal=false
stop_at pending 1 TERM
ends "without one of the last step" 75 finish pending
expect "the checkpoint in flight exists" ./dtrain-info "$tmp/pending/checkpoints/step-00000004.h5"
ends_saying "run.time_limit: 75" 75 "a checkpoint is written" train 1 limit run.max_steps=100000 checkpoint.save_steps=7 checkpoint.async=true run.time_limit=4
train 1 kept $async checkpoint.save_total_limit=2
expect "save_total_limit keeps two" test "$(ls "$tmp/kept/checkpoints" | grep -c 'h5$')" = 2

# the best
best="$steps data.validation=$tmp/valid.h5 data.validation_steps=1 checkpoint.save_steps=1 run.max_steps=6 optimizer.lr=0.3 checkpoint.load_best_model_at_end=true checkpoint.save_total_limit=1"
train 2 best $best
ends "the best checkpoint of a run with asynchronous saves" 0 train 2 best-async $best checkpoint.async=true
expect "is the same" sh -c "cmp $tmp/best/checkpoints/best $tmp/best-async/checkpoints/best && ls $tmp/best/checkpoints >$tmp/.a && ls $tmp/best-async/checkpoints | diff $tmp/.a -"

# states that are kept elsewhere
for where in cpu nvme; do
    away="zero.offload_optimizer=$where zero.nvme_path=$tmp"
    train 2 away-$where $steps $away
    ends "states offloaded to $where" 0 train 2 away-$where-async $async $away
    expect "are the same" models_agree away-$where away-$where-async
done

# the disk
if [ "$(id -u)" = 0 ] && mkdir -p "$tmp/small" && mount -t tmpfs -o size=2m tmpfs "$tmp/small" 2>/dev/null; then
    trap 'kill $(jobs -p) 2>/dev/null; umount -l "$tmp/small"; rm -rf "$tmp"' EXIT
    ends "full disk: 74" 74 train 2 small/run $async model.hidden_size=96
    expect "the last good checkpoint verifies" ./dtrain-info "$(newest small/run)"
    expect "no partial file is left" sh -c "! ls $tmp/small/run/checkpoints | grep -q part"
else
    skip "full disk" "no permission to mount a small file system"
fi
e2e_done

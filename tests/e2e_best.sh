#!/bin/bash
# e2e_best.sh - the best checkpoint and early stopping: detected, kept, exported, and preserved across stops and changes of layout.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
# The letters of the training data without its words: the validation loss goes down while letters are learned, and up when words are.
awk 'BEGIN { srand(11); l = "eeeetttaaooiinnsshhrrdlu"; for (d = 0; d < 12; d++) { s = "";
     for (i = 0; i < 300; i++) s = s (rand() < 0.25 ? " " : substr(l, int(rand() * length(l)) + 1, 1)); print s } }' >"$tmp/other.txt"
./dtrain-data --documents lines -o "$tmp/other.h5" "$tmp/other.txt" >/dev/null 2>&1
set -- data.validation="$tmp/other.h5" data.validation_steps=2 checkpoint.save_steps=4 checkpoint.load_best_model_at_end=true run.max_steps=24
validation_lines() { sed -n 's/.*"step": *\([0-9]*\), "validation_loss": *\([-+0-9.eE]*\).*/\1 \2/p' "$tmp/$1/metrics.jsonl"; }
best_step() { validation_lines "$1" | sort -g -k2 | head -1 | cut -d' ' -f1; }
name_of() { printf 'step-%08d.h5' "$1"; }

ends "a run that keeps its best checkpoint checkpoint" 0 train 2 a "$@" checkpoint.save_total_limit=1 checkpoint.export=hf
best=$(best_step a)
expect "the best is neither the first nor the last ($best)" test "$best" -gt 2 -a "$best" -lt 24
expect "the file best names the best checkpoint" test "$(cat "$tmp/a/checkpoints/best")" = "$(name_of "$best")"
expect "save_total_limit = 1 keeps the best and the newest checkpoint" test "$(ls "$tmp/a/checkpoints" | grep -c '^step-.*h5$')" = 2
expect_text "the result has the weights of the best checkpoint" "the best model is that of step $best "
./dtrain-convert "$tmp/a/checkpoints/best" "$tmp/best-hf" >/dev/null 2>&1
expect "the exported model is the best one" cmp "$tmp/best-hf/model.safetensors" "$tmp/a/hf/model.safetensors"

# on its own training data a model becomes better: the newest is the best, at every save
train 2 n "$@" data.validation="$tmp/train.h5" run.max_steps=8 checkpoint.save_total_limit=1
expect "the newest is the best" test "$(cat "$tmp/n/checkpoints/best")" = "$(name_of 8)"
expect "the former best checkpoint is deleted" test "$(ls "$tmp/n/checkpoints" | grep -c '^step-.*h5$')" = 1

# stopped, and resumed on another layout
train 2 b "$@" run.max_steps=24 zero.stage=2
for nth in 7 4 6; do # step of each run at which rank 0 stops; it receives a signal when it continues
    DTRAIN_FAULT=step.begin:0:$nth:stop start 3 c "$@" zero.stage=3
    stop_at c 1 USR1
    ends "stopped in its step $nth: 75" 75 finish c
    expect "the file best names an existing checkpoint ($nth)" test -f "$tmp/c/checkpoints/$(cat "$tmp/c/checkpoints/best")"
done
expect "the best was found before the last stop" cmp "$tmp/b/checkpoints/best" "$tmp/c/checkpoints/best"
ends "the run ends" 0 train 1 c "$@" zero.stage=0
expect "the best checkpoint is the same across stops and layouts" cmp "$tmp/b/checkpoints/best" "$tmp/c/checkpoints/best"

# early stopping
ends "early stopping ends a run in order" 0 train 2 d "$@" run.early_stopping_patience=2 run.max_steps=60
expect_text "early stopping is reported" "early stopping at step [0-9]+ of 60: 2 validations did not improve on step"
last=$(validation_lines d | tail -1 | cut -d' ' -f1)
expect "two validations after the best" test "$last" = $(($(best_step d) + 4))
prints "a resumed run stops early again" "early stopping at step $last of 60" train 3 d "$@" run.early_stopping_patience=2 run.max_steps=60
train 1 d "$@" run.early_stopping_patience=3 run.max_steps=60
expect_text "with more patience the run continues" "early stopping at step $((last + 2)) of 60"
prints "a threshold that no improvement reaches" "early stopping at step 6 of 60" train 2 t "$@" run.early_stopping_patience=2 run.early_stopping_threshold=100 run.max_steps=60

# going back before the best
rm -rf "$tmp/g" && cp -r "$tmp/b" "$tmp/g"
first=$(ls "$tmp/g/checkpoints" | grep '^step' | head -1)
ends "back before the best" 0 train 2 g "$@" run.max_steps=24 zero.stage=2 checkpoint.resume="$tmp/g/checkpoints/$first" optimizer.lr=1e-5
expect "the best checkpoint belongs to the current branch" test -f "$tmp/g/checkpoints/$(cat "$tmp/g/checkpoints/best")"

# keys that do not go together
refused() { local name=$1 text=$2; shift 2; train 1 r "$@"; expect_exit "$name: 64" 64; expect_text "$name: says what fits" "$text"; }
refused "saves without a validation" "multiple of data.validation_steps = 3, found 7; the nearest are 6 and 9" "$@" data.validation_steps=3 checkpoint.save_steps=7
refused "more saves than validations" "the nearest is 8" "$@" data.validation_steps=8 checkpoint.save_steps=4
refused "no validation on the way" "set data.validation_steps = 4 or a divisor" "$@" data.validation_steps=0
refused "no validation data" "needs data.validation, which is empty" "$@" data.validation=
refused "patience without validations" "needs validations during the run" data.validation="$tmp/other.h5" run.early_stopping_patience=2
rm -rf "$tmp/k"
DTRAIN_FAULT=best.publish:0:3:kill train 2 k "$@" zero.stage=2
train 3 k "$@" zero.stage=2
expect "killed between a save and the update of the file best" cmp "$tmp/b/checkpoints/best" "$tmp/k/checkpoints/best"
for point in best.publish best.load; do
    rm -rf "$tmp/f"
    DTRAIN_FAULT=$point:1:1:error ends "one rank fails at $point: 70" 70 train 2 f "$@"
done
e2e_done

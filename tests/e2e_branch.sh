#!/bin/bash
# e2e_branch.sh - resuming from an older checkpoint, and resuming with other settings. Later checkpoints are moved away and reported;
# ambiguous requests are refused. A kill between any two of the moves loses nothing.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
steps="run.max_steps=8 checkpoint.save_steps=2 log.report_to=stdout,jsonl,csv"
ends "a run of 8 steps" 0 train 2 whole $steps zero.stage=2
train 1 slow $steps optimizer.lr=1e-3 run.max_steps=4
begin() { rm -rf "$tmp/b" && cp -r "$tmp/whole" "$tmp/b"; }
steps_are() { [ "$(losses "$1" | cut -d' ' -f1 | tr '\n' ' ')" = "$2 " ]; }
files_are() { [ "$(ls "$tmp/$1" | tr '\n' ' ')" = "$2 " ]; }
back="checkpoint.resume=$tmp/b/checkpoints/step-00000004.h5"

# back to step 4 with another rate
begin
ends "going back to step 4" 0 train 2 b $steps $back run.max_steps=5 optimizer.lr=1e-3 model.chat_template=plain
expect_text "the folder of the moved checkpoints is logged" "continuing from step 4; later checkpoints and records were moved to .*b/left/after-step-00000004"
expect_text "changed settings are logged" "other settings; the run continues with the new ones: .*optimizer.lr: 0.01 -> 0.001"
expect_text "a changed chat template is logged" "the new ones: .*model.chat_template: .nothing. -> plain"
expect "the newer checkpoints are in the left branch" files_are b/left/after-step-00000004/checkpoints "step-00000006.h5 step-00000008.h5"
expect "the metrics table is in the left branch" cmp "$tmp/whole/metrics.csv" "$tmp/b/left/after-step-00000004/metrics.csv"
expect "the left branch keeps its records" steps_are b/left/after-step-00000004 "1 2 3 4 5 6 7 8"
prints "auto resumes from the new branch" "resumed from .*step-00000005.h5" train 3 b $steps optimizer.lr=1e-3
expect "the metrics have each step once" steps_are b "1 2 3 4 5 6 7 8"
expect "of the new branch" test "$(losses b | tail -1)" != "$(losses whole | tail -1)"
ends "a run resumes from the left branch" 0 train 2 b2 checkpoint.resume="$tmp/b/left/after-step-00000004" $steps
prints "a second left branch gets a folder of its own" "b/left/after-step-00000004.2" train 2 b $steps $back optimizer.lr=1e-3

# killed between the moves
for point in branch.copied:0:1 branch.latest:0:1 branch.begin:0:1 branch.move:0:1 branch.move:0:2 branch.name:0:1; do
    begin
    DTRAIN_FAULT=$point:kill train 2 b $steps $back optimizer.lr=1e-3
    [ "$code" != 0 ] || not_ok "killed at $point" "the run did not die"
    if [ $point = branch.copied:0:1 ]; then want="8 of 8"; else want="step-00000004.h5"; fi
    ends_saying "killed at $point: the next start" 0 "$want" train 2 b $steps optimizer.lr=1e-3
    expect "killed at $point: no step is left out" steps_are b "1 2 3 4 5 6 7 8"
    if [ $point = branch.copied:0:1 ]; then expect "killed at $point: nothing was left" test ! -e "$tmp/b/left"
    else expect "killed at $point: the left branch is complete" files_are b/left/after-step-00000004/checkpoints "step-00000006.h5 step-00000008.h5"; fi
done
begin
mkdir -p "$tmp/b/left/unfinished"
touch "$tmp/b/left/unfinished/metrics.jsonl" "$tmp/b/left/unfinished/metrics.csv.part" "$tmp/b/left/unfinished/step.part"
train 2 b $steps
expect "killed within a copy: nothing was left" test ! -e "$tmp/b/left"
begin
DTRAIN_FAULT=branch.move:0:1:error ends "rank 0 fails while it moves: all leave with 70" 70 train 3 b $steps $back optimizer.lr=1e-3
for np in 1 3; do
    DTRAIN_FAULT=resume.choose:$((np - 1)):1:error train $np b $steps
    expect_exit "one of $np ranks fails while a checkpoint is chosen: 70" 70
done

# a newer file that `latest` does not know
begin
cp "$tmp/b/checkpoints/step-00000008.h5" "$tmp/stale.h5"
rm "$tmp/b/checkpoints/step-00000008.h5" && printf step-00000006.h5 >"$tmp/b/checkpoints/latest"
cp "$tmp/stale.h5" "$tmp/b/checkpoints/step-00000009.h5"
prints "latest decides" "resumed from .*step-00000006.h5" train 2 b $steps
expect "the other checkpoint is moved away" files_are b/left/after-step-00000006/checkpoints step-00000009.h5

# a run that began from a path is submitted again as it was
ends "from another run's checkpoint" 0 train 1 c $steps checkpoint.resume="$tmp/whole/checkpoints/step-00000004.h5" run.max_steps=6
train 1 c $steps checkpoint.resume="$tmp/whole/checkpoints/step-00000004.h5" run.max_steps=6
expect_text "a resubmitted run resumes from its own checkpoint" "continues from its own newest checkpoint"
ends "a checkpoint of another run over an own one: 64" 64 train 1 c $steps checkpoint.resume="$tmp/slow/checkpoints/step-00000002.h5"
expect_text "the message names the remedy" "use auto to continue from those, or choose another run.output_dir"

# so is one whose first checkpoint was deleted by save_total_limit meanwhile
train 1 d $steps run.max_steps=4
from="run.max_steps=8 checkpoint.save_total_limit=1 checkpoint.resume=$tmp/d/checkpoints/step-00000004.h5"
train 1 d $steps $from run.max_steps=6
expect "the checkpoint of the given path is deleted" files_are d/checkpoints "latest step-00000006.h5"
ends "a run whose given checkpoint was deleted is resubmitted" 0 train 1 d $steps $from
expect_text "the run reports that it resumes from its newest checkpoint" "which has been deleted; it continues from its own newest checkpoint"
expect_text "the newest checkpoint is resumed" "resumed from .*d/checkpoints/step-00000006.h5"
ends "a checkpoint path that the run never had: 65" 65 train 1 d $steps checkpoint.resume="$tmp/d/checkpoints/step-00000002.h5"

# other settings
begin
refused() { # name, text, settings...
    local name=$1 text=$2
    shift 2
    ends_saying "$name: 64" 64 "$text" train 2 b "$@"
}
refused "fewer steps than are done" "run.max_steps: .*is of step 8, after the end of the run at step 3" run.max_steps=3
refused "another task" "run.task: pretrain -> sft" run.max_steps=12 run.task=sft
refused "another dataset" "data.train: another dataset -> .*valid.h5" run.max_steps=12 data.train="$tmp/valid.h5"
refused "another length" "data.seq_len: 32 -> 16" run.max_steps=12 data.seq_len=16
refused "another model" "model.num_hidden_layers: 2 -> 3, model.rope_theta: 10000 -> 5000" run.max_steps=12 model.num_hidden_layers=3 model.rope_theta=5000
refused "another model's rotary table" "model.rope_scaling: default -> llama3, .*model.rope_scaling.low_freq_factor: 0 -> 1" run.max_steps=12 \
    'model.rope_scaling={"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":32}'
expect_text "the message names the remedy" "another run.output_dir .to begin with its weights: model.path = .*step-00000008.h5"
expect "before anything is allocated" test "$(grep -c '^allocated' "$out")" = 0
ends "--check refuses, too" 64 run 2 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/b" run.max_steps=12 data.seq_len=16
ends "allowed by name" 0 train 2 b run.max_steps=10 data.train="$tmp/valid.h5" checkpoint.allow_changes=data.train
expect_text "the new dataset is reported" "the run continues with the new ones: .*data.train: another dataset"
mv "$tmp/train.h5" "$tmp/moved.h5"
train 2 b run.max_steps=12 checkpoint.allow_changes=data.train data.train="$tmp/moved.h5"
mv "$tmp/moved.h5" "$tmp/train.h5"
begin
prints "another dropout is reported" "model.attn_pdrop: 0 -> 0.1" train 1 b run.max_steps=9 model.dropout=0.1
train 1 b run.max_steps=10 model.dropout=0.1
expect "settings are compared with those in effect" sh -c "! grep -q pdrop $out"
cp "$tmp/train.h5" "$tmp/moved.h5"
begin
ends "the same data in another place" 0 train 2 b run.max_steps=9 data.train="$tmp/moved.h5"
e2e_done

#!/bin/bash
# e2e_extend.sh - the learning rate after the number of steps of a run is raised: scheduler.on_extend.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
linear="scheduler.type=linear checkpoint.save_steps=2"
rates() { number "$1" lr | tr '\n' ' '; }
fork_run() { rm -rf "$tmp/$2"; cp -r "$tmp/$1" "$tmp/$2"; }

train 1 start $linear run.max_steps=4
expect "a run of 4 steps" test "$(rates start)" = "0.01 0.0075 0.005 0.0025 "

fork_run start rescale
train 1 rescale $linear run.max_steps=8
expect_text "rescale, the default: the jump is reported" \
    "the learning rate jumps from 0.0025 at step 4 to 0.005 at step 5, because the schedule is recomputed for 8 steps instead of 4; scheduler.on_extend = continue"
expect "the rates are those of 8 steps" test "$(rates rescale)" = "0.01 0.0075 0.005 0.0025 0.005 0.00375 0.0025 0.00125 "

fork_run start check
mpirun -np 1 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/check" $linear run.max_steps=8 >"$out" 2>&1
expect_text "--check reports it, too" "from 0.0025 at step 4 to 0.005 at step 5"

fork_run start whole
prints "continue: no jump" "the learning rate continues from 0.0025 at step 4 to 0 at step 8" train 2 whole $linear run.max_steps=8 scheduler.on_extend=continue
expect "from the rate reached to the new end" test "$(rates whole)" = "0.01 0.0075 0.005 0.0025 0.0025 0.001875 0.00125 0.000625 "

# stopped and resumed within the extension, as a job script does, without the key that was given once
fork_run start parts
DTRAIN_FAULT=step.begin:0:3:kill train 2 parts $linear run.max_steps=8 scheduler.on_extend=continue
prints "resumed in the extension" "step-00000006.h5" train 2 parts $linear run.max_steps=8
expect "no message about the learning rate" sh -c "! grep -q 'the learning rate' '$out'"
expect "the same rates" test "$(rates parts)" = "$(rates whole)"
expect "losses are bit-identical" close_losses whole parts 0

train 2 whole $linear run.max_steps=10 scheduler.on_extend=continue
expect "extended once more: from its last rate" test "$(rates whole | cut -d' ' -f9-)" = "0.000625 0.0003125 "

fork_run start rewarm
ends "rewarm without a warm-up: 64" 64 train 1 rewarm $linear run.max_steps=10 scheduler.on_extend=rewarm
train 1 rewarm $linear run.max_steps=10 scheduler.on_extend=rewarm scheduler.warmup_steps=2
expect_text "rewarm: up to lr again" "from 0.0025 at step 4 to 0.01 at step 7, then changes to 0 at step 10"
expect "rewarm: learning rates of each step" test "$(rates rewarm | cut -d' ' -f5-)" = "0.0025 0.00625 0.01 0.0075 0.005 0.0025 "

train 1 epochs $linear run.max_steps=0 run.epochs=1 batch.train_batch_size=12
prints "raising run.epochs recomputes the schedule" "the learning rate jumps from .* because the schedule is recomputed for" train 1 epochs $linear run.max_steps=0 run.epochs=2 batch.train_batch_size=12
prints "run.epochs that ends before the checkpoint: nothing is trained" \
    "nothing to train: the checkpoint of step .* is already past the end of the run at step " train 1 epochs $linear run.max_steps=0 run.epochs=1 batch.train_batch_size=12
e2e_done

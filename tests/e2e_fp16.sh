#!/bin/bash
# e2e_fp16.sh - training in fp16: static and dynamic loss scales, overflows on one rank, resuming inside a window, persistent overflows, and
# the data type in which gradients are sent.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
fp16="precision.dtype=fp16"

field() { sed -n "s/.*\"$2\": *\\([-+0-9.e]*\\).*/\\1/p" "$tmp/$1/metrics.jsonl" | tr '\n' ' '; } # of every step
info() { ./dtrain-info "$(newest "$1")" | awk -v key="$2" '$1 == key { print $2 }'; }

ends "fp16 trains" 0 train 1 ref $fp16
expect "the loss falls" sh -c "sed -n 's/.*\"loss\": *\\([0-9.]*\\).*/\\1/p' $tmp/ref/metrics.jsonl | awk 'NR == 1 { a = \$1 } { b = \$1 } END { exit !(b < 0.9 * a) }'"
is "the loss scale is reported" "$(field ref loss_scale)" "65536 65536 65536 65536 65536 65536 "

# A loss in fp32 differs by what fp16 rounds: 2^-12 of activations on average, some ten times on the way, and by as much in each of 6 updates.
train 1 fp32
expect "losses are near those of fp32" close_losses fp32 ref 5e-3
# Gradients are accumulated in fp32: what differs is the order of sums, and parameters that round to the neighbour now and then.
for np in 2 3 4; do
    for stage in 0 1 2 3; do
        train "$np" "s$stage" $fp16 zero.stage=$stage
        expect "$np ranks at stage $stage" close_losses ref "s$stage" 5e-4
        rm -rf "$tmp/s$stage"
    done
done
train 2 one-step $fp16 batch.micro_batch_size=12 zero.stage=2 # without accumulation gradients are kept and sent in fp16, too
expect "gradients in fp16" close_losses ref one-step 2e-3
train 1 static $fp16 precision.loss_scale=1000
expect "a static scale that is no power of two" close_losses ref static 2e-3
is "the static loss scale is constant" "$(field static loss_scale)" "1000 1000 1000 1000 1000 1000 "
train 1 exact $fp16 run.reproducible=true
train 3 exact3 $fp16 run.reproducible=true zero.stage=3
expect "reproducible: every digit" close_losses exact exact3 0
expect "reproducible: every bit" same_model "$(newest exact)" "$(newest exact3)"

# Rank 1 of 3 overflows in its first micro-batch of step 3, the last: all three keep the weights and states of step 2. lr is that of step 3 again.
train 3 two $fp16 run.max_steps=2 zero.stage=2
DTRAIN_FAULT=head.overflow:1:17:error ends "an overflow on one rank ends no run" 0 train 3 skips $fp16 run.max_steps=3 zero.stage=2
expect_text "the skipped step is reported" "step 3 is skipped: the gradients of unit head, summed over the ranks, are not finite; the loss scale stays 65536"
expect "all ranks keep weights and states" same_model "$(newest two)" "$(newest skips)"
expect "neither the schedule nor Adam moves" grep -q "step  *3 (2 updates)" <(./dtrain-info "$(newest skips)")
DTRAIN_FAULT=head.overflow:1:1:error ends "an overflow in the only step does not end a run with a dynamic scale" 0 train 2 only $fp16 run.max_steps=1
DTRAIN_FAULT=head.overflow:1:1:error ends "an overflow in the only step with a static scale: 71" 71 train 2 only-static $fp16 run.max_steps=1 precision.loss_scale=16
expect_text "the message names unit and rank" "not finite in every step of this run .1 in all.; in the last, the gradients of unit head on rank 1 were the first"
linear="scheduler.type=linear scheduler.warmup_steps=6"
DTRAIN_FAULT=head.overflow:2:9:error train 3 warm $fp16 $linear run.max_steps=4 zero.stage=0
is "a skipped step does not use up a rate" "$(field warm lr)" "0 0.00166666667 0.00166666667 0.00333333333 "

# From the second bad step on, ranks look at their own gradients. hysteresis 1: each overflow halves.
shrink="precision.hysteresis=1 precision.initial_scale_power=8 precision.min_loss_scale=100"
for stage in 0 2; do
    DTRAIN_FAULT=head.overflow:2:1:error,head.overflow:2:9:error,head.overflow:2:17:error train 3 min$stage $fp16 $shrink zero.stage=$stage
    expect_exit "overflows with the smallest scale at stage $stage: 71" 71
    expect_text "the scale falls" "step 1 is skipped: .*; the loss scale is lowered from 256 to 128"
    expect_text "unit and rank are known by then" "step 2 is skipped: the gradients of unit .* on rank 2 are not finite; .* from 128 to 100"
    expect_text "the end" "step 3: the gradients of unit .* on rank 2 are not finite, even with the minimum loss scale of 100"
done
train 2 lost $fp16 optimizer.lr=10 optimizer.max_grad_norm=0 optimizer.eps=0 optimizer.weight_decay=10 run.max_steps=60 scheduler.type=constant
expect_exit "weights that are beyond fp16: 71" 71
expect_text "with the smallest scale" "not finite, even with the minimum loss scale of 1 "
train 2 lost-static $fp16 precision.loss_scale=16 optimizer.lr=10 optimizer.max_grad_norm=0 optimizer.eps=0 optimizer.weight_decay=10 run.max_steps=60 run.max_skipped_steps=3
expect_exit "a static scale: 71 after max_skipped_steps" 71
expect_text "the message names unit and rank" "in 3 consecutive steps; in the last, step .*, the gradients of unit .* on rank [01] were the first"

# Where the first bad step is the last, ranks look at their own gradients before it comes.
first="of unit head on rank 1"
DTRAIN_FAULT=head.overflow:1:13:error ends "the first bad step is one too many: 71" 71 train 2 first-static $fp16 precision.loss_scale=16 run.max_skipped_steps=1
expect_text "unit and rank are known" "in the last, step 2, the gradients $first were the first"
DTRAIN_FAULT=head.overflow:1:13:error train 2 first-least $fp16 precision.hysteresis=1 precision.min_loss_scale=65536 zero.stage=3
expect_exit "the first overflow has the smallest scale: 71" 71
expect_text "unit and rank are known" "step 2: the gradients $first are not finite, even with the minimum loss scale of 65536"

# A window of 3, an overflow of rank 0 in step 2: lowered there, doubled after steps 6 and 9. Stopped in the middle of a window.
window="precision.hysteresis=1 precision.loss_scale_window=3 run.max_steps=10"
DTRAIN_FAULT=head.overflow:0:25:error train 1 whole $fp16 $window
is "scale by step" "$(field whole loss_scale)" "65536 65536 32768 32768 32768 32768 65536 65536 65536 131072 "
DTRAIN_FAULT=head.overflow:0:25:error train 1 parts $fp16 $window run.max_steps=4
is "the scale is in the checkpoint" "$(info parts loss_scale)" 32768
train 1 parts $fp16 $window
is "resumed in mid-window: scale by step" "$(field parts loss_scale)" "$(field whole loss_scale)"
expect "all weights are bit-identical" same_model "$(newest whole)" "$(newest parts)"
train 3 moved $fp16 $window run.max_steps=4 zero.stage=3
train 2 moved $fp16 $window zero.stage=1
is "on other ranks and another stage" "$(field moved loss_scale)" "65536 65536 65536 65536 131072 131072 131072 262144 262144 262144 "
train 1 to-bf16 $fp16 run.max_steps=2
ends "an fp16 run resumes in bf16" 0 train 1 to-bf16 precision.dtype=bf16 run.max_steps=3
train 1 to-bf16 $fp16 run.max_steps=4
is "a bf16 run resumes in fp16, from the initial scale" "$(field to-bf16 loss_scale)" "65536 65536 65536 "

# in which type gradients are sent
for type in fp32 bf16 fp16; do
    train 2 "sent-$type" precision.reduce_dtype=$type zero.stage=2 data.validation="$tmp/valid.h5"
    expect "gradients of fp32, sent in $type" close_losses fp32 "sent-$type" 5e-3
done
expect "fp32 is what they are" same_model "$(newest sent-fp32)" "$(train 2 sent-auto zero.stage=2; newest sent-auto)"
expect "gradients sent in bf16 are rounded" sh -c "! h5diff -q '$(newest sent-fp32)' '$(newest sent-bf16)' /model /model"
./dtrain --plan --ranks 4 "$tmp/tiny.ini" run.output_dir="$tmp/none" zero.stage=2 >"$tmp/plan32" 2>&1
./dtrain --plan --ranks 4 "$tmp/tiny.ini" run.output_dir="$tmp/none" zero.stage=2 precision.reduce_dtype=bf16 >"$tmp/plan16" 2>&1
expect "the plan counts it" sh -c "! cmp -s '$tmp/plan32' '$tmp/plan16'"
ends "reproducible sums are fp32: 64" 64 train 1 refused run.reproducible=true precision.reduce_dtype=bf16
expect_text "why" "precision.reduce_dtype|reduce_dtype: expected auto or fp32, because run.reproducible .*found bf16"

# without backward
ends "evaluation in fp16" 0 train 1 evaluated $fp16 run.task=eval model.path="$tmp/ref" data.validation="$tmp/valid.h5"
ends "generation in fp16" 0 run 1 ./dtrain-generate "$tmp/ref" --tokenizer bytes --prompt "the of" --max-new-tokens 8 --greedy --dtype fp16 --threads 1
[ "$n_not_ok" = 0 ]

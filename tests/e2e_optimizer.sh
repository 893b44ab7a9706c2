#!/bin/bash
# e2e_optimizer.sh - every optimizer on any number of ranks, saved and resumed; per-tensor learning rates; a resume with another optimizer.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
exact="run.reproducible=true optimizer.lr_groups=lm_head:1e-3,layers.0:2e-2"
field() { # of dtrain-info --json, of one file
    ./dtrain-info --json "$1" | sed -n "s/.*\"$2\":\(\[[^]]*\]\|[^,]*\),.*/\1/p"
}

for type in adamw adam sgd muon "sgd optimizer.momentum=0"; do
    case $type in
    adam*) states='["exp_avg","exp_avg_sq"]' ;;
    muon) states='["exp_avg","exp_avg_sq","momentum_buffer"]' ;;
    sgd) states='["momentum_buffer"]' ;;
    *) states='[]' ;;
    esac
    ends "$type trains" 0 train 1 whole $exact optimizer.type=$type
    train 2 parts $exact optimizer.type=$type zero.stage=2 run.max_steps=3
    ends "$type resumes on other ranks" 0 train 3 parts $exact optimizer.type=$type zero.stage=3
    expect "$type: in two parts, on other ranks, at other stages: the same bits" same_model "$(newest whole)" "$(newest parts)"
    expect "$type: and the same losses" close_losses whole parts 0
    expect "$type: the file says so" [ "$(field "$(newest parts)" optimizer) $(field "$(newest parts)" optimizer_states)" = "\"${type%% *}\" $states" ]
    rm -rf "$tmp/whole" "$tmp/parts"
done

DTRAIN_FAULT=zero.matrix:1:1:error ends "muon: a rank that fails alone ends the run with 70" 70 train 2 alone $exact optimizer.type=muon zero.stage=2
ends_saying "adapters are no matrices for muon" 64 "optimizer.type: muon updates whole matrices, but with lora.r = 4" \
    train 1 lora optimizer.type=muon lora.r=4

for dtype in bf16 int8; do
    set -- $exact optimizer.state_dtype=$dtype
    ends "states in $dtype train" 0 train 1 whole "$@"
    train 2 parts "$@" zero.stage=2 run.max_steps=3
    ends "states in $dtype resume on other ranks" 0 train 3 parts "$@" zero.stage=3
    expect "states in $dtype: in two parts, on other ranks, at other stages: the same bits" same_model "$(newest whole)" "$(newest parts)"
    expect "states in $dtype: and the same losses" close_losses whole parts 0
    rm -rf "$tmp/whole" "$tmp/parts"
done
train 2 types run.max_steps=3
ends "states in fp32 become bf16" 0 train 2 types optimizer.state_dtype=bf16 run.max_steps=4
expect_text "the change is reported" "optimizer.state_dtype: fp32 -> bf16"
ends_saying "but not int8" 64 "optimizer.state_dtype: bf16 -> int8" train 2 types optimizer.state_dtype=int8
ends "unless they may start at zero" 0 train 2 types optimizer.state_dtype=int8 checkpoint.allow_changes=optimizer.state_dtype
expect_text "they start at zero" "in bf16, does not contain the states of adamw in int8; they start at zero"

train 2 groups optimizer.lr_groups="lm_head:1e-3, *layernorm:0" scheduler.type=linear
expect "the rate of each group is in the metrics" grep -q '"lr": 0.00833333333,.*"lr/lm_head": 0.000833333333, "lr/\*layernorm": 0,' "$tmp/groups/metrics.jsonl"
expect_text "learning rates and their tensors are logged at the start" 'lr/\*layernorm: 0 for 4 tensors with 128 parameters'
ends "a pattern that names nothing" 64 train 1 groups optimizer.lr_groups=lm_haed:1e-3
expect_text "the nearest names are given" "optimizer.lr_groups: 'lm_haed' matches no trained tensor; the nearest names are lm_head"

train 2 change run.max_steps=3
ends_saying "another optimizer is refused" 64 "optimizer.type: adamw -> sgd" train 2 change optimizer.type=sgd
ends "unless it is meant" 0 train 2 change optimizer.type=sgd checkpoint.allow_changes=optimizer.type
expect_text "its states begin at zero" "does not contain the states of sgd; they start at zero"
expect "state updates are counted from the change" [ "$(field "$(newest change)" updates) $(field "$(newest change)" state_updates)" = "6 3" ]
train 1 change2 run.max_steps=3
ends "from adamw to adam" 0 train 1 change2 optimizer.type=adam checkpoint.allow_changes=optimizer.type
expect "the moments go on" [ "$(field "$(newest change2)" state_updates)" = 6 ]
e2e_done

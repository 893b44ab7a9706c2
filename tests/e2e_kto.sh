#!/bin/bash
# e2e_kto.sh - answers with labels. The losses match TRL's KTOTrainer and BCOTrainer, on any number of ranks and at any stage; the estimates of kl
# and delta depend on neither.
# Also: learning; resuming; validation; a reference that follows the policy; records; errors.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
data -o "$tmp/pairs.h5" tests/data/kto/pairs.jsonl
data --tokenizer tests/data/rm/letters -o "$tmp/more.h5" tests/data/kto/more.jsonl
make_task kto run.max_steps=6 data.train="$tmp/pairs.h5" data.shuffle=false batch.train_batch_size=4
# Layouts: also where ranks have no sample in the last step of an epoch.
against_trl kto 16 1 "1 2 3 1" "3 4 0 1" "5 2 2 1" "5 4 3 1" "6 4 1 1" "4 2 2 2" "8 2 2 1" "9 3 0 2" "10 4 3 1"
# Bit for bit in reproducible mode: steps of 12 of 27 answers, so that every third one has 3, which some ranks and micro-steps have none of.
keys=(kto.beta=1 data.validation_steps=2 data.validation="$tmp/more.h5")
for layout in "1 0" "2 2" "3 3 zero.offload_optimizer=cpu zero.offload_param=cpu" "2 1 data.prefetch=0"; do
    set -- $layout
    bits "$1" "bits$1$2" "${keys[@]}" zero.stage="$2" "${@:3}"
    expect "the same bits on $1 ranks at stage $2${3:+, ${*:3}}" same_model "$(newest bits10)" "$(newest "bits$1$2")"
    is "the same estimates" "$(number bits10 kto/kl; number bits10 kto/validation_kl)" "$(number "bits$1$2" kto/kl; number "bits$1$2" kto/validation_kl)"
done
for layout in "1 0" "2 2" "3 3 zero.offload_optimizer=cpu"; do
    set -- $layout
    bits "$1" "bco$1" kto.loss_type=bco kto.beta=1 data.validation_steps=2 data.validation="$tmp/more.h5" zero.stage="$2" "${@:3}"
    expect "bco: the same bits on $1 ranks at stage $2" same_model "$(newest bco1)" "$(newest "bco$1")"
    is "the same delta" "$(number bco1 kto/delta; number bco1 kto/validation_delta)" "$(number "bco$1" kto/delta; number "bco$1" kto/validation_delta)"
done
bits 2 bco-halves kto.loss_type=bco kto.beta=1 run.max_steps=2
bits 3 bco-halves kto.loss_type=bco kto.beta=1 zero.stage=2 checkpoint.resume=auto
expect "bco: resumed on other ranks, the same bits and the same delta" sh -c 'h5diff "$1" "$2" /model /model && h5diff "$1" "$2" /task /task' sh "$(newest bco1)" "$(newest bco-halves)"
train 2 bco-learns kto.loss_type=bco run.max_steps=30 batch.micro_batch_size=2 optimizer.lr=5e-3 log.report_to="stdout, jsonl"
expect_text "a step shows margins and delta" 'step 30/30 .*  loss [-0-9.]+  margins [-0-9.e+]+  delta [-0-9.e+]+  grad '
expect "bco: good answers gain" above bco-learns kto/rewards/margins 0.5
expect "planned is allocated" as_planned
DTRAIN_FAULT=head.overflow:1:2:error train 2 bco-skips kto.loss_type=bco batch.micro_batch_size=2 run.max_steps=3
expect "a step whose update is left out is not part of delta" sh -c "h5dump -d /task/ratio_count '$(newest bco-skips)' | grep -q '(0): 8\$'"
fails_alone 1 task.kto 2 train 2 bco-alone kto.loss_type=bco batch.micro_batch_size=1
is "all answers have counted" "$(number bits33 samples | tail -1)" 39
bits 2 halves "${keys[@]}" run.max_steps=2
bits 3 halves "${keys[@]}" zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks: the same bits" same_model "$(newest bits10)" "$(newest halves)"

train 2 learns run.max_steps=30 batch.micro_batch_size=2 optimizer.lr=5e-3 data.validation="$tmp/pairs.h5" log.report_to="stdout, jsonl"
expect_text "a step shows margins and kl" 'step 30/30 .*  loss [-0-9.]+  margins [-0-9.e+]+  kl [-0-9.e+]+  grad '
expect "good answers gain" above learns kto/rewards/margins 0.5
expect "planned is allocated" as_planned
expect "a validation has its metrics" grep -q '"validation_loss".*"kto/validation_rewards/margins".*"kto/validation_kl"' "$tmp/learns/metrics.jsonl"
fails_alone 1 task.kto 2 train 2 alone batch.micro_batch_size=1

ends "a label is shown" 0 run 0 ./dtrain-data show "$tmp/pairs.h5" 1
expect_text "with its answer" '^label (true|false)$'
ends "labels are counted" 0 run 0 ./dtrain-data info "$tmp/pairs.h5"
expect_text "good and bad" '^labels +12 good, 12 bad$'
grep '"label": true' tests/data/kto/pairs.jsonl >"$tmp/good.jsonl"
head -n 1 tests/data/kto/pairs.jsonl >"$tmp/single.jsonl"
{ cat "$tmp/good.jsonl" && grep -m 2 '"label": false' tests/data/kto/pairs.jsonl; } >"$tmp/uneven.jsonl"
for name in good single uneven; do data --kind unpaired -o "$tmp/$name.h5" "$tmp/$name.jsonl"; done
ends "a run on good answers only" 0 train 2 good data.train="$tmp/good.h5" run.max_steps=1
expect_text "warns once, with file and counts" 'train = .*/good\.h5: found 12 good and 0 bad answers: .* add records with label false'
is "rank 0 warns for all" "$(grep -c 'found 12 good' "$out")" 1
ends "twelve good and two bad answers" 0 train 1 uneven data.train="$tmp/uneven.h5" run.max_steps=1
expect_text "are far from the usual ratio" 'train = .*/uneven\.h5: found 12 good and 2 bad answers: weights included, the good ones count 6 times .* kto\.undesirable_weight = 4\.5 to 6$'
ends "with such a weight" 0 train 1 even data.train="$tmp/uneven.h5" run.max_steps=1 kto.undesirable_weight=5
expect "there is no warning" sh -c '! grep -q "weights included" "$1"' sh "$out"
ends "a last step and a validation of one answer" 0 train 1 last batch.train_batch_size=23 batch.micro_batch_size=1 data.validation="$tmp/single.h5" run.max_steps=2
expect_text "warn of the step" 'train_batch_size = 23: the last step of an epoch has 1 of the 24 samples'
expect_text "and of the validation" '\[data\] validation = .*/single\.h5: it has 1 sample'
ends "kl is not estimated" 0 train 1 apo kto.loss_type=apo_zero_unpaired batch.train_batch_size=23 batch.micro_batch_size=1 run.max_steps=1
expect "so nothing is wrong with one sample" sh -c '! grep -q "the last step of an epoch has" "$1"' sh "$out"

ends "a step of one answer" 64 train 1 one batch.train_batch_size=1
expect_text "is refused by its key" 'train_batch_size: expected at least 2 with kto.loss_type = kto'
ends "two weights of 0" 64 train 1 weights kto.desirable_weight=0 kto.undesirable_weight=0
expect_text "are refused by key" 'undesirable_weight: expected above 0 with kto\.desirable_weight = 0'
ends "another kind" 65 train 1 kind data.train="$tmp/pairs.h5" run.task=dpo
expect_text "is refused" 'kind unpaired: expected preference \(records with chosen and rejected\) for this task \(dpo\)'
e2e_done

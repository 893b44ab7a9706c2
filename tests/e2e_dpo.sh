#!/bin/bash
# e2e_dpo.sh - preference optimisation: every loss as TRL's DPOTrainer computes it, the same on any number of ranks and at any stage; log 2 at the
# start; learning; resuming; validation; what is refused.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/dpo
data() { ./dtrain-data --tokenizer bytes "$@" >"$tmp/.data" 2>&1 || { cat "$tmp/.data"; not_ok "data for the tests" "dtrain-data failed"; exit 1; }; }
data -o "$tmp/pairs.h5" tests/data/rm/pairs.jsonl
dpo() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    run "$np" ./dtrain /dev/stdin run.task=dpo run.output_dir="$tmp/$dir" run.max_steps=6 run.threads=1 model.path="$fixture/start" data.train="$tmp/pairs.h5" \
        data.seq_len=64 data.shuffle=false batch.train_batch_size=4 optimizer.lr=1e-2 optimizer.weight_decay=0.1 optimizer.betas="0.9, 0.999" \
        optimizer.eps=1e-8 optimizer.max_grad_norm=1 scheduler.type=constant log.report_to=jsonl checkpoint.save_steps=0 "$@"
}
number() { sed -n "s|.*\"$2\": *\\([-+0-9.eE]*\\).*|\\1|p" "$tmp/$1/metrics.jsonl"; }
# TRL's numbers have seven digits. Of sums of some fifty log-probabilities fp32 keeps 1e-5; six steps at a high rate make 2e-4 of the number of that,
# and for a small difference of large sums 1e-3.
like_trl() { # DIR RUN
    paste -d' ' <(number "$1" loss) <(number "$1" grad_norm) <(number "$1" dpo/rewards/chosen) <(number "$1" dpo/rewards/rejected) \
        <(number "$1" dpo/rewards/accuracies) <(number "$1" dpo/rewards/margins) <(number "$1" dpo/logps/chosen) <(number "$1" dpo/logps/rejected) >"$tmp/.ours"
    awk -v n="$2" '/^run/ { k++; next } k == n' "$fixture/trl.txt" >"$tmp/.trl"
    paste -d' ' "$tmp/.ours" "$tmp/.trl" | awk '
        { for (i = 1; i <= 8; i++) { d = $i - $(i + 8); d = d < 0 ? -d : d; s = $(i + 8); s = s < 0 ? -s : s
              if (NF != 16 || !(d <= (i == 5 ? 0 : 2e-4 * s + 1e-3))) { print "step", NR ", number", i ":", $i, $(i + 8); bad = 1 } } }
        END { exit bad || NR != 6 }'
}
n=0
while read -r _ loss keys; do
    n=$((n + 1))
    dpo 1 "trl$n" dpo.loss_type="$loss" batch.micro_batch_size=2 $keys
    expect "$loss${keys:+ $keys} is TRL's" like_trl "trl$n" "$n"
done < <(grep '^run' "$fixture/trl.txt")
expect "the loss of the first step is log 2" [ "$(number trl1 loss | head -1)" = 0.693147181 ]
expect "and its margins are 0" [ "$(number trl1 dpo/rewards/margins | head -1)" = 0 ]

for layout in "1 3 1" "2 0 2" "2 2 1" "2 3 1" "4 3 1"; do
    set -- $layout
    dpo "$1" "layout$1$2" dpo.loss_type=sigmoid,bco_pair,sft dpo.loss_weights=0.8,0.2,1 zero.stage="$2" batch.micro_batch_size="$3"
    expect "the same on $1 ranks, stage $2, micro-batches of $3" like_trl "layout$1$2" 14
done
for layout in "1 0" "2 2" "3 3" "4 1"; do
    set -- $layout
    dpo "$1" "bits$1" batch.train_batch_size=12 batch.micro_batch_size=1 run.reproducible=true zero.stage="$2" run.max_steps=4
    expect "the same bits on $1 ranks at stage $2" same_model "$(newest bits1)" "$(newest "bits$1")"
done
dpo 2 halves batch.train_batch_size=12 batch.micro_batch_size=1 run.reproducible=true run.max_steps=2
dpo 3 halves batch.train_batch_size=12 batch.micro_batch_size=1 run.reproducible=true run.max_steps=4 zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks: the same bits" same_model "$(newest bits1)" "$(newest halves)"

dpo 2 learns run.max_steps=30 batch.micro_batch_size=2 optimizer.lr=5e-3 data.validation="$tmp/pairs.h5"
expect "margins grow" sh -c "sed -n 's|.*\"dpo/rewards/margins\": *\\([-+0-9.e]*\\).*|\\1|p' '$tmp/learns/metrics.jsonl' | awk 'END { exit !(\$1 > 1) }'"
expect_text "planned is allocated" '^allocated '
expect "a validation has its metrics" grep -q '"validation_loss".*"dpo/validation_rewards/accuracies"' "$tmp/learns/metrics.jsonl"
dpo 1 other dpo.reference_path="$tmp/learns" batch.micro_batch_size=4 run.max_steps=1
expect_exit "another reference" 0
expect "is another reference" [ "$(number other loss | head -1)" != 0.693147181 ]

# MM-DPO: beta of the first step's pairs, from the margins of the data (appendix C: beta 0.1, w = k = 0.5).
dpo 1 mm dpo.beta_w=0.5 dpo.beta_k=0.5 batch.micro_batch_size=4 run.max_steps=1
want=$(head -4 tests/data/rm/pairs.jsonl | sed 's/.*"margin": \([0-9.]*\).*/\1/' | awk '{ b += 0.1 * (1 + 0.5 * (1 - exp(-0.5 * $1))) } END { print b / NR }')
expect "beta grows with the margins" awk -v a="$(number mm dpo/beta)" -v b="$want" 'BEGIN { d = a - b; exit !(d < 1e-6 && d > -1e-6) }'

# Planned with the model there and before it is: the same, the reference counted.
plan() { ./dtrain --plan --ranks 2 /dev/stdin run.task=dpo data.seq_len=64 batch.micro_batch_size=2 "$@" </dev/null 2>&1 | grep -E '^[0-3] +[0-9]'; }
plan model.path="$fixture/start" >"$tmp/.there"
plan model.config="$fixture/start/config.json" >"$tmp/.shape"
expect "a reference that is not there yet is planned for" sh -c "[ -s '$tmp/.there' ] && cmp '$tmp/.there' '$tmp/.shape'"

refuse() { # NAME TEXT ARGS...
    local name=$1 text=$2
    shift 2
    dpo 1 refused batch.micro_batch_size=4 "$@"
    expect_exit "$name: exit code" 64
    expect_text "$name: message" "$text"
}
refuse "an unknown loss" 'loss_type: expected names of losses.*found sigmoyd' dpo.loss_type=sigmoyd
refuse "a loss twice" 'loss_type: hinge is named twice' dpo.loss_type=hinge,hinge
refuse "another number of weights" 'loss_weights: expected 2 numbers' dpo.loss_type=hinge,sft dpo.loss_weights=1
refuse "smoothing of sigmoid" 'label_smoothing: expected 0 for this loss_type .with smoothing, sigmoid is called cdpo.' dpo.label_smoothing=0.1
refuse "exo_pair without smoothing" 'exo_pair needs a number above 0' dpo.loss_type=exo_pair
run 1 ./dtrain /dev/stdin run.task=dpo run.output_dir="$tmp/refused" model.model_type=llama data.train="$tmp/pairs.h5" batch.micro_batch_size=4
expect_text "no model to start from" 'path .default.: expected a model to align, found nothing'

for point in data.read zero.reduce; do
    RUN_TIMEOUT=60 DTRAIN_FAULT=$point:1:3:error kill_at_once dpo 2 "failed-$point" batch.micro_batch_size=1 zero.stage=3
    if [ "$code" != 0 ] && [ "$code" != 124 ]; then ok "a rank that fails at $point ends the run ($code)"; else not_ok "a rank that fails at $point" "exit code $code"; fi
done
e2e_done

#!/bin/bash
# e2e_dpo.sh - preference optimisation. Every loss matches TRL's DPOTrainer, ORPOTrainer or CPOTrainer, on any number of ranks and at any stage;
# the initial loss is log 2. Also: learning; resuming; validation; judges; a reference that follows the policy or is precomputed; errors.
# QUICK:
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/dpo
sed 's/, "margin": [0-9.]*//' tests/data/rm/pairs.jsonl >"$tmp/pairs.jsonl" # beta would follow it
data -o "$tmp/pairs.h5" "$tmp/pairs.jsonl"
make_task dpo run.max_steps=6 data.train="$tmp/pairs.h5" data.shuffle=false batch.train_batch_size=4
data --tokenizer tests/data/rm/letters -o "$tmp/more.h5" tests/data/rm/more.jsonl
# Layouts: also where losses compare pairs with those of other ranks and micro-steps, and where ranks have no pair in the last step of an epoch.
against_trl dpo 28 4 "14 1 3 1" "14 2 0 2" "14 2 2 1" "14 2 3 1" "14 4 3 1" "20 2 3 1" "20 4 0 1" "26 2 2 2" "27 4 3 1" "29 2 0 1" "29 4 3 1" \
    "32 4 3 1" "40 2 2 1" "43 2 3 1" "45 4 0 1"
train 1 first batch.micro_batch_size=4 run.max_steps=1
expect "the loss of the first step is log 2" [ "$(number first loss)" = 0.693147181 ]
expect "initial margins are 0" [ "$(number first dpo/rewards/margins)" = 0 ]
# Bit for bit in reproducible mode: steps of 12 of 15 pairs, so that every second one has 3, which some ranks and micro-steps have none of.
while read -r what keys; do
    for layout in "1 0" "2 2" "3 3 zero.offload_optimizer=cpu zero.offload_param=cpu" "4 1 zero.offload_optimizer=nvme zero.nvme_path=$tmp"; do
        set -- $layout
        bits "$1" "$what$1" zero.stage="$2" "${@:3}" ${keys/MORE/$tmp/more.h5}
        expect "$what: the same bits on $1 ranks at stage $2${3:+, offloaded}" same_model "$(newest "${what}1")" "$(newest "$what$1")"
    done
    expect "$what: all pairs have counted" [ "$(number "${what}3" samples | tail -1)" = 30 ]
done <<'BITS'
sigmoid
aot dpo.loss_type=aot,sft dpo.label_smoothing=0.1 data.validation_steps=2 data.validation=MORE
batch-beta dpo.dynamic_beta=batch dpo.beta_keep=0.5
orpo dpo.loss_type=orpo,simpo
adapters dpo.loss_type=simpo lora.r=2
BITS
is "aot: the same validations" "$(number aot1 validation_loss)" "$(number aot4 validation_loss)"
bits 2 halves run.max_steps=2
bits 3 halves zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks: the same bits" same_model "$(newest sigmoid1)" "$(newest halves)"

train 2 learns run.max_steps=30 batch.micro_batch_size=2 optimizer.lr=5e-3 data.validation="$tmp/pairs.h5" log.report_to="stdout, jsonl"
expect_text "a step shows accuracies and margins" 'step 30/30 .*  loss [-0-9.]+  accuracies [0-9.]+  margins [-0-9.e+]+  grad '
expect "margins grow" sh -c "sed -n 's|.*\"dpo/rewards/margins\": *\\([-+0-9.e]*\\).*|\\1|p' '$tmp/learns/metrics.jsonl' | awk 'END { exit !(\$1 > 1) }'"
expect "planned is allocated" as_planned
expect "a validation has its metrics" grep -q '"validation_loss".*"dpo/validation_rewards/accuracies"' "$tmp/learns/metrics.jsonl"
ends "another reference" 0 train 1 other dpo.reference_path="$tmp/learns" batch.micro_batch_size=4 run.max_steps=1
expect "is another reference" [ "$(number other loss | head -1)" != 0.693147181 ]

# Without a reference: none is loaded, computed or planned.
for loss in cpo simpo orpo; do
    train 2 alone run.max_steps=30 batch.micro_batch_size=2 optimizer.lr=5e-3 dpo.beta=1 dpo.loss_type=$loss data.validation="$tmp/pairs.h5"
    expect "$loss: margins grow" above alone dpo/rewards/margins 0.1
    expect "and most pairs are in order" above alone dpo/rewards/accuracies 0.7
    [ $loss = orpo ] || rm -r "$tmp/alone"
done
expect "orpo: the odds of chosen answers grow" above alone dpo/log_odds_chosen 1
expect "planned is allocated" as_planned
expect "--plan has said so" as_plan_says 2 0 dpo.loss_type=orpo dpo.beta=1 data.validation="$tmp/pairs.h5" batch.micro_batch_size=2
is "no reference is read" "$(grep -c 'reference' "$out")" 0
held() { awk '/^allocated/ { print $2; exit }' "$out"; } # of the last run
alone_bytes=$(held)
train 2 with run.max_steps=1 batch.micro_batch_size=2 data.validation="$tmp/pairs.h5"
expect "with a reference a run allocates more" test "$(held)" != "$alone_bytes"
is "a checkpoint has nothing of a reference" "$(h5dump -n "$(newest alone)" | grep -c reference)" 0

full_only

# MM-DPO: beta of margins in the data, a pair a step, as algorithms.md 3.4 works them out.
for margin in 0 1 2 4 10 -1; do echo "{\"prompt\": \"it is \", \"chosen\": \"so\", \"rejected\": \"not\", \"margin\": $margin}"; done >"$tmp/margins.jsonl"
data -o "$tmp/margins.h5" "$tmp/margins.jsonl"
betas() { # DIR WANT ARGS...
    local dir=$1 want=$2
    shift 2
    train 2 "$dir" data.train="$tmp/margins.h5" batch.train_batch_size=2 batch.micro_batch_size=1 run.max_steps=3 "$@"
    number "$dir" dpo/beta | tr '\n' ' ' >"$tmp/.betas"
    echo "$want" | awk 'NR == FNR { n = split($0, b, " "); next } { for (i = 1; i <= 3; i++) { d = $i - (b[2 * i - 1] + b[2 * i]) / 2; bad += d > 6e-7 || d < -6e-7 } }
        END { exit bad || n != 6 || NF != 3 }' - "$tmp/.betas"
}
expect "beta grows with margins, within bounds; one below 0 is none" betas mm "0.1 0.119673 0.131606 0.143233 0.149663 0.1"
expect_text "the log reports that beta depends on the margin" 'beta of each pair depends on its margin in the data, with beta_w = 0.5'
expect "dpo.negative_margin = abs: beta depends on the absolute margin" betas mm-abs "0.1 0.119673 0.131606 0.143233 0.149663 0.119673" dpo.negative_margin=abs
expect "beta with other settings" betas mm-set "0.2 0.239347 0.263212 0.286466 0.299326 0.2" dpo.beta=0.2 dpo.beta_w=0.5 dpo.beta_k=0.5
expect "dpo.dynamic_beta = factor: beta without bounds" betas factor "0.1 0.11 0.12 0.14 0.2 0.09" dpo.dynamic_beta=factor
expect "and of 0 times the margin it is none" betas beta-still "0.1 0.1 0.1 0.1 0.1 0.1" dpo.beta_w=0

# A plain loop, its numbers named in the first line of FIXTURE.
like_loops() { # DIR FIXTURE RUN
    local name ours=()
    for name in $(head -1 "$fixture/$2"); do number "$1" "$name" >"$tmp/.n${name//\//_}"; ours+=("$tmp/.n${name//\//_}"); done
    awk -v n="$3" '/^run/ { k++; next } k == n' "$fixture/$2" >"$tmp/.loops"
    paste -d' ' "${ours[@]}" "$tmp/.loops" | awk -v n="${#ours[@]}" '
        { for (i = 1; i <= n; i++) { d = $i - $(i + n); d = d < 0 ? -d : d; s = $(i + n); s = s < 0 ? -s : s
              if (NF != 2 * n || !(d <= 2e-4 * s + 1e-3)) { print "step", NR ", number", i ":", $i, $(i + n); bad = 1 } } }
        END { exit bad || NR != 6 }'
}
# One beta for all pairs of a step.
n=0
while read -r _ keys; do
    n=$((n + 1))
    train 1 "batch$n" dpo.dynamic_beta=batch batch.micro_batch_size=2 $keys
    expect "a beta of the step: $keys" like_loops "batch$n" batch.txt "$n"
done < <(grep '^run' "$fixture/batch.txt")
by_batch() { train "$1" "$2" dpo.dynamic_beta=batch dpo.beta_keep=0.5 batch.train_batch_size=6 batch.micro_batch_size=1 run.reproducible=true "${@:3}"; } # NP DIR ARGS...
same_task() { same_model "$1" "$2" && h5diff "$1" "$2" /task /task; }
by_batch 1 beta-whole data.validation="$tmp/pairs.h5"
by_batch 2 beta-parts run.max_steps=3 zero.stage=2
by_batch 3 beta-parts zero.stage=3 checkpoint.resume=auto data.validation="$tmp/pairs.h5"
expect "planned is allocated" as_planned
expect "stopped and resumed on other ranks at another stage: model and usual margins have the same bits" same_task "$(newest beta-whole)" "$(newest beta-parts)"
is "a validation has beta as it is set, and all pairs" "$(number beta-whole validation_loss)" "$(number beta-parts validation_loss)"
DTRAIN_FAULT=head.overflow:1:2:error train 2 beta-skips dpo.dynamic_beta=batch batch.micro_batch_size=2 run.max_steps=3
expect "a step whose update is left out is none of them" sh -c "h5dump -d /task/gap_steps '$(newest beta-skips)' | grep -q '(0): 2\$'"

# ---- judges -------------------------------------------------------------------------------------------------------------------------------------
# Safe-MM-DPO as plain loops take it.
judged="dpo.helpful_path=tests/data/rm/start dpo.harmless_path=$fixture/judge"
n=0
while read -r _ keys; do
    n=$((n + 1))
    train 1 "safe$n" $judged batch.micro_batch_size=2 $keys
    expect "Safe-MM-DPO: $keys" like_loops "safe$n" safe.txt "$n"
done < <(grep '^run' "$fixture/safe.txt")
for layout in "2 3 1" "4 2 1"; do
    set -- $layout
    train "$1" "safe-layout$1" $judged zero.stage="$2" batch.micro_batch_size="$3" $(sed -n '/^run/{s/run //p;q}' "$fixture/safe.txt")
    expect "the same on $1 ranks at stage $2" like_loops "safe-layout$1" safe.txt 1
done
expect "planned is allocated" as_planned
train 1 safe-margins dpo.harmless_path="$fixture/judge" data.train="$tmp/margins.h5" batch.micro_batch_size=4 run.max_steps=1
expect "without a helpful judge the helpful margins are those of the data" [ "$(number safe-margins dpo/delta_helpful)" = 1.75 ]
safely() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    train "$np" "$dir" $judged dpo.lambda_lr=0.5 dpo.sync_reference_steps=2 batch.train_batch_size=6 batch.micro_batch_size=1 run.reproducible=true "$@"
}
same_reference() { same_model "$1" "$2" && h5diff "$1" "$2" /reference /reference && h5diff "$1" "$2" /task /task; }
safely 1 whole
safely 2 parts run.max_steps=3
safely 3 parts zero.stage=3 zero.offload_param=cpu checkpoint.resume=auto checkpoint.async=true checkpoint.save_steps=1
expect "stopped between two syncs and resumed at stage 3: model, reference and lambda have the same bits" same_reference "$(newest whole)" "$(newest parts)"
DTRAIN_FAULT=head.overflow:1:2:error train 2 skips $judged dpo.lambda_lr=0.5 batch.micro_batch_size=2 run.max_steps=3
expect "a step whose update is left out leaves lambda and the average of costs as they are" awk 'NR == 2 { l = $1; e = $2 } NR == 1 { e1 = $2 } NR == 3 { l3 = $1; e3 = $2 }
    END { exit !(NR == 3 && l == l3 && e == e1 && e3 != e) }' <(paste -d' ' <(number skips dpo/lambda) <(number skips dpo/cost_ema))
train 1 still dpo.sync_reference_steps=100 batch.micro_batch_size=4 run.max_steps=1
train 1 mixed dpo.sync_reference_steps=2 dpo.sync_reference_mixup=0.25 batch.micro_batch_size=4 run.max_steps=2
# The final norm, without its checksum.
norm_of() { h5dump -d "$2/model.norm.weight" -y -w 1 -m %.9g "$(newest "$1")" | sed -n 's/^ *\(-\{0,1\}[0-9][-+.0-9e]\{0,14\}\),\{0,1\}$/\1/p'; } # DIR GROUP
paste -d' ' <(norm_of still /reference/model) <(norm_of mixed /model) <(norm_of mixed /reference/model) >"$tmp/.mixed"
expect "a reference that follows is mixed as asked for" awk '
    { d = $3 - (0.75 * $1 + 0.25 * $2); moved += $1 != $3; if (d > 1e-6 || d < -1e-6) { print; bad = 1 } } END { exit bad || NR == 0 || moved == 0 }' "$tmp/.mixed"
# Learning: each pair has the answer first that the judge takes for safer, so that the expected cost falls from the mean of both answers' costs to that
# of the safer ones. With the limit halfway, lambda rises first, and falls once the average of costs is below the limit.
score() { ./dtrain-generate --tokenizer bytes --threads 1 -o "$1.scores" --score "$fixture/judge" --answers "$1" >"$tmp/.data" 2>&1; }
sed 's/"chosen"/"completion"/' tests/data/rm/pairs.jsonl >"$tmp/.first.jsonl"
sed 's/"rejected"/"completion"/' tests/data/rm/pairs.jsonl >"$tmp/.second.jsonl"
score "$tmp/.first.jsonl"
score "$tmp/.second.jsonl"
paste "-d|" "$tmp/.first.jsonl.scores" "$tmp/.second.jsonl.scores" "$tmp/pairs.jsonl" | awk -F'|' -v to="$tmp/safer.jsonl" '
    { line = $3; if ($2 > $1) { gsub(/"chosen"/, "\"x\"", line); gsub(/"rejected"/, "\"chosen\"", line); gsub(/"x"/, "\"rejected\"", line) }
      print line >to; both -= ($1 + $2) / 2; safer -= $1 > $2 ? $1 : $2 }
    END { print (both + safer) / 2 / NR }' >"$tmp/.limit"
data -o "$tmp/safer.h5" "$tmp/safer.jsonl"
train 2 safer $judged data.train="$tmp/safer.h5" batch.train_batch_size=12 batch.micro_batch_size=6 run.max_steps=50 dpo.lambda_lr=0.3 dpo.cost_limit="$(cat "$tmp/.limit")"
paste -d' ' <(number safer dpo/lambda) <(number safer dpo/cost_ema) >"$tmp/.lambda"
expect "lambda rises while costs exceed the limit, and falls after" awk -v limit="$(cat "$tmp/.limit")" '
    NR > 1 { up = ema > limit; if (up ? $1 <= last : $1 >= last) { print "step", NR ":", last, $1, "after", ema; bad = 1 } n[up]++ }
    { last = $1; ema = $2 } END { print n[0], n[1]; exit bad || NR != 50 || n[0] < 10 || n[1] < 10 }' "$tmp/.lambda"
train 1 mm-judge dpo.helpful_path=tests/data/rm/start batch.micro_batch_size=4 run.max_steps=1
# Micro-batches of another size: products may round otherwise (fp32: 6e-8).
near "a reward model alone says beta" "$(number mm-judge dpo/beta)" "$(number safe1 dpo/beta | head -1)" 1e-6

# ---- what the reference says, found before -----------------------------------------------------------------------------------------------------
before() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    train "$np" "$dir" dpo.precompute_reference=true data.validation="$tmp/pairs.h5" "$@"
}
train 1 asked batch.micro_batch_size=2 data.validation="$tmp/pairs.h5"
before 1 before1 batch.micro_batch_size=2
expect "a precomputed reference gives the same losses" close_losses before1 asked 1e-5
expect "the reference uses no memory: planned memory is allocated" as_planned
before 3 before3 batch.micro_batch_size=1 zero.stage=3 batch.train_batch_size=6
for keys in dpo.precompute_reference=true ""; do
    train 2 "layout-before$keys" data.validation="$tmp/pairs.h5" batch.micro_batch_size=1 batch.train_batch_size=6 zero.stage=2 $keys
done
expect "on 3 ranks at stage 3, too" close_losses before3 layout-before 1e-5
cp "$tmp/before3/reference-logps.bin" "$tmp/.kept"
before 2 before3 batch.micro_batch_size=1 batch.train_batch_size=6 run.max_steps=7
expect "the file is used again" cmp "$tmp/.kept" "$tmp/before3/reference-logps.bin"
ends "other data: exit code" 65 before 1 before3 batch.micro_batch_size=1 batch.train_batch_size=6 run.max_steps=8 data.max_validation_samples=5
expect_text "other data: message" 'reference-logps.bin: the validation data of the file does not match this run; remove the file'
before 1 before3 batch.micro_batch_size=1 batch.train_batch_size=6 run.max_steps=8 dpo.reference_path="$tmp/before3"
expect_text "another reference" 'reference-logps.bin: the model of the file does not match this run'
before 1 before3 batch.micro_batch_size=1 batch.train_batch_size=6 run.max_steps=8 dpo.loss_type=sigmoid,sft dpo.sft_on_prompt=true
expect_text "prompts that the file lacks" 'reference-logps.bin: expected [0-9]+ log-probabilities, found [0-9]+ .dpo.sft_on_prompt adds those of prompts'
rm "$tmp/before3/reference-logps.bin"
before 1 before3 batch.micro_batch_size=1 batch.train_batch_size=6 run.max_steps=8 dpo.reference_path="$tmp/before3"
expect_text "also where the file is gone: the run began with another" 'expected the reference that the run started with, found another one'
printf x | dd of="$tmp/before1/reference-logps.bin" bs=1 seek=4100 conv=notrunc 2>/dev/null
prints "a file that was altered" 'the checksum does not match the contents' before 1 before1 batch.micro_batch_size=2 run.max_steps=8

# Planned with the model there and before it is: the same, the reference counted.
plan() { ./dtrain --plan --ranks 2 /dev/stdin run.task=dpo data.seq_len=64 batch.micro_batch_size=2 "$@" </dev/null 2>&1 | grep -E '^[0-3] +[0-9]'; }
plan model.path="$fixture/start" >"$tmp/.there"
plan model.config="$fixture/start/config.json" >"$tmp/.shape"
expect "a reference that is not there yet is planned for" sh -c "[ -s '$tmp/.there' ] && cmp '$tmp/.there' '$tmp/.shape'"

plan model.path="$fixture/start" $judged dpo.kl_coef=0 >"$tmp/.judges"
expect "judges add memory to the plan" awk 'NR == FNR { before[$1] = $0; next } { split(before[$1], b); n += $2 > b[2] || $0 != before[$1] } END { exit n < 4 || n != FNR }' "$tmp/.there" "$tmp/.judges"

cpu_only

refuse() { # NAME TEXT ARGS...
    local name=$1 text=$2
    shift 2
    ends_saying "$name: exit code" 64 "$text" train 1 refused batch.micro_batch_size=4 "$@"
}
refuse "an unknown loss" 'loss_type: expected loss names.*found sigmoyd' dpo.loss_type=sigmoyd
refuse "a loss twice" 'loss_type: hinge is listed twice' dpo.loss_type=hinge,hinge
refuse "another number of weights" 'loss_weights: expected 2 numbers' dpo.loss_type=hinge,sft dpo.loss_weights=1
refuse "no weight at all" 'loss_weights: expected at least one number above 0' dpo.loss_type=hinge,sft dpo.loss_weights=0,0
refuse "smoothing of sigmoid" 'label_smoothing: expected 0 for this loss_type, found 0.1 .sigmoid with smoothing is loss_type = cdpo.' dpo.label_smoothing=0.1
refuse "partners with WPO" 'use_wpo: expected false, because loss_type = aot and aot_unpaired compare answers of different pairs' dpo.loss_type=aot dpo.use_wpo=true
refuse "means of means" 'average: expected false, because loss_type = ipo already divides by the lengths' dpo.loss_type=ipo dpo.average=true
refuse "a reference that follows is not known before" 'precompute_reference: expected false with sync_reference_steps' dpo.precompute_reference=true dpo.sync_reference_steps=2
refuse "nor is a full divergence from it" 'kl_estimator .default.: expected k3, because full needs the reference in memory' dpo.precompute_reference=true dpo.kl_coef=0.1
refuse "a lambda beyond its limits" 'lambda_init .default.: expected a number from lambda_min = 0.01 to lambda_max = 0.5, found 1' dpo.lambda_max=0.5
refuse "a beta of the step with judges" 'dynamic_beta: expected margin or factor, because batch cannot use the margins of judges' dpo.dynamic_beta=batch $judged
refuse "or with partners" 'dynamic_beta: batch skips pairs' dpo.dynamic_beta=batch dpo.loss_type=aot
for key in reference_path=tests/data/dpo/start precompute_reference=true sync_reference_steps=2 kl_coef=0.1 f_divergence=js_divergence dynamic_beta=batch; do
    refuse "${key%%=*} without a reference" "\[dpo\] ${key%%=*}|dpo\.${key%%=*}.*loss_type = simpo.* has no" dpo.loss_type=simpo "dpo.$key"
done
refuse "sft twice" 'loss_type: expected no sft, because another loss contains it; cpo_alpha' dpo.loss_type=cpo,sft
refuse "a weight of no term" 'cpo_alpha: expected none for this loss_type' dpo.cpo_alpha=0.5
refuse "a margin of no simpo" 'simpo_gamma: expected the default for this loss_type' dpo.loss_type=cpo dpo.simpo_gamma=1
refuse "a shape of orpo" 'alphapo_alpha: expected 0 for this loss_type' dpo.loss_type=orpo dpo.alphapo_alpha=0.25
refuse "prompts of no term" 'sft_on_prompt: expected auto for this loss_type' dpo.loss_type=simpo dpo.sft_on_prompt=true
refuse "means of the means of simpo" 'average: expected false, because loss_type = simpo already divides' dpo.loss_type=simpo dpo.average=true
refuse "exo_pair without smoothing" 'expected a number above 0 for loss_type = exo_pair' dpo.loss_type=exo_pair
run 1 ./dtrain /dev/stdin run.task=dpo run.output_dir="$tmp/refused" model.model_type=llama data.train="$tmp/pairs.h5" batch.micro_batch_size=4
expect_text "no model to start from" 'path .default.: expected a model to align, found none'

ends "a language model is no judge: exit code" 65 train 1 refused batch.micro_batch_size=4 dpo.helpful_path="$fixture/start"
expect_text "the missing tensor is named" 'tensor .score.weight. is missing: this is not a reward model'
ends_saying "a judge that is not there: exit code" 65 'helpful_path: .*nowhere' train 1 refused batch.micro_batch_size=4 dpo.helpful_path="$tmp/nowhere"
train 1 refused batch.micro_batch_size=4 model.path=tests/data/rm/start
expect_text "a reward model is none to align" 'tensor .lm_head.weight. is missing: this is a reward model or a classifier, which does not predict tokens'
train 1 refused batch.micro_batch_size=4 model.path=tests/data/rm/qwen2 data.train="$tmp/more.h5" data.seq_len=28
expect_text "nor with an embedding that could be its head" 'tensor .score.weight.: this model has no such tensor: this is a reward model'
sed 's/258/259/' "$fixture/judge/config.json" >"$tmp/.config"
cp -r "$fixture/judge" "$tmp/other-judge" && cp "$tmp/.config" "$tmp/other-judge/config.json"
train 1 refused batch.micro_batch_size=4 dpo.harmless_path="$tmp/other-judge"
expect_text "a judge with another vocabulary" 'vocab_size of the harmless model is 259, but the model in training has 258'

while read -r rank point nth keys; do
    [ "$keys" != judged ] || keys="dpo.sync_reference_steps=1 $judged"
    fails_alone "$rank" "$point" "$nth" train 2 "failed-$point" batch.micro_batch_size=1 zero.stage=3 $keys
done <<'FAULTS'
1 data.read 3 judged
1 zero.reduce 3 judged
1 zero.update 3 judged
1 head.reference 3 judged
1 task.score 2 judged
1 reference.sync 2 judged
1 reference.score 2 dpo.precompute_reference=true
0 reference.write 1 dpo.precompute_reference=true
1 task.pairs 3 dpo.dynamic_beta=batch
FAULTS
e2e_done

#!/bin/bash
# e2e_grpo.sh - group-relative policy optimisation. Given completions and rewards, steps match TRL's GRPOTrainer in every setting of
# tests/data/grpo/trl.json (RLOOTrainer and plain loops for other advantages), on any number of ranks and at any stage. Results are bit-identical where documented, also after a resume inside
# a generation. Also: learning from a program's rewards; errors; a failing rank.
# QUICK:
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/grpo
for i in $(seq 0 26); do echo "{\"prompt\": \"count $i\"}"; done >"$tmp/prompts.jsonl"
head -20 "$tmp/prompts.jsonl" >"$tmp/train.jsonl"
tail -7 "$tmp/prompts.jsonl" >"$tmp/valid.jsonl"
data -o "$tmp/prompts.h5" "$tmp/train.jsonl"
data -o "$tmp/valid.h5" "$tmp/valid.jsonl"
make_task grpo batch.train_batch_size=8 grpo.num_generations=4 grpo.max_completion_length=6

# Both compute in fp32 and their roundings differ: after ten steps at a high rate numbers are off by some 1e-6 of themselves, tensors by 1e-5 of their
# change. What is off in a formula shows in the first digits.
given() { # NP DIR NAME ARGS...: the run NAME of the fixture
    local np=$1 dir=$2 name=$3 keys key settings=()
    shift 3
    keys=$(grep -o "{\"name\": \"$name\", \"keys\": \"[^\"]*\"" "$fixture/trl.json" | sed 's/.*"keys": "//; s/"$//')
    for key in $keys; do case $key in micro=*) settings+=(batch.micro_batch_size="${key#*=}") ;; batch=*) settings+=(batch.train_batch_size="${key#*=}") ;; *) settings+=("grpo.$key") ;; esac; done
    train "$np" "$dir" run.max_steps=10 grpo.rollouts="$fixture/rollouts.jsonl" data.shuffle=false batch.micro_batch_size=8 checkpoint.export=hf "${settings[@]}" "$@"
}
if command -v python3 >/dev/null; then
    n=0
    while read -r name; do
        every 4 $((n += 1)) || continue
        given 1 trl "$name"
        expect "$name: TRL's numbers" like_trl trl grpo "$name"
        rm -rf "$tmp/trl"
    done < <(grep -o '{"name": "[^"]*"' "$fixture/trl.json" | sed 's/.*: "//; s/"$//')
    n=0
    for layout in "1 3 1 bias correction" "2 0 2 top entropies" "2 3 1 entropy bonus" "4 1 1 truncated ones masked" "4 2 2 synced reference" "2 3 1 rloo with kl" "4 1 1 reinforce++" \
        "2 2 2 reinforce++-baseline with kl in the reward" "4 0 1 reinforce normalised"; do
        every 4 $((n += 1)) || continue
        read -r np stage micro name <<<"$layout"
        given "$np" layout "$name" zero.stage="$stage" batch.micro_batch_size="$micro"
        expect "$name on $np ranks, stage $stage, micro-batches of $micro: TRL's numbers" like_trl layout grpo "$name"
        rm -rf "$tmp/layout"
    done
else
    skip "TRL's numbers" "no python3 to compare them"
fi

# Groups 3, 10 and 17 of the file have equal rewards, and are the first of three, the second, the third: the remaining groups move up, and new ones follow them.
# It is what it would be without them.
awk 'NR != 4 && NR != 11 && NR != 18' "$fixture/rollouts.jsonl" >"$tmp/telling.jsonl"
dynamic=(run.max_steps=8 run.reproducible=true grpo.rollouts="$fixture/rollouts.jsonl" grpo.reward_weights=1,0 data.shuffle=false batch.train_batch_size=12 batch.micro_batch_size=2
    grpo.dynamic_sampling=true log.rollouts=true)
train 2 dynamic "${dynamic[@]}"
expect "no group says nothing" test "$(number dynamic grpo/frac_reward_zero_std | sort -u)" = 0
expect "one more group is generated for each omitted one" test "$(number dynamic grpo/sampling_rounds | tr '\n' ' ')" = "1 2 1 2 1 2 2 1 "
train 1 telling "${dynamic[@]}" grpo.rollouts="$tmp/telling.jsonl"
expect "the same as of a file without these groups" same_model "$(newest dynamic)" "$(newest telling)"
expect "line by line" cmp "$tmp/dynamic/rollouts.jsonl" "$tmp/telling/rollouts.jsonl"
train 1 once "${dynamic[@]}" batch.train_batch_size=8 grpo.dynamic_sampling_rounds=1
expect "one round keeps groups of equal rewards" test "$(number once grpo/frac_reward_zero_std | sort -u | tr '\n' ' ')" = "0 0.5 "

# Generated completions, every option at once: one micro-batch size, any ranks and stages. Rewards: the share of ids that are multiples of 8.
cat >"$tmp/reward.sh" <<'SH'
while read -r line; do
    ids=${line##*\"completion_ids\":} n=0 low=0
    ids=${ids#*[}
    ids=${ids%%]*}
    for id in ${ids//,/ }; do n=$((n + 1)); [ $((id % 8)) != 0 ] || low=$((low + 1)); done
    echo "$((100 * low / n))e-2"
done
SH
all=(data.train="$tmp/prompts.h5" "grpo.reward_funcs=command:bash $tmp/reward.sh" run.max_steps=6 run.reproducible=true batch.train_batch_size=24
    batch.micro_batch_size=2 grpo.num_iterations=2 grpo.generation_batch_size=48 grpo.beta=0.1 grpo.sync_reference_steps=2 grpo.top_entropy_quantile=0.5
    grpo.ent_coef=0.05 grpo.temperature=0.8 grpo.dynamic_sampling=true grpo.overlong_cache=4 grpo.mask_truncated_completions=true)
told() { sed -E 's/, "(step_time|tokens_per_second|memory[a-z_/]*|flops_per_second|mfu|grpo\/time\/[a-z]*)": [^,}]*//g' "$tmp/$1/metrics.jsonl"; }
same_told() { alike "$(told "$1")" "$(told "$2")"; }
for layout in "1 0" "2 3" "3 2 zero.offload_optimizer=cpu" "4 1" "2 3 zero.offload_optimizer=nvme zero.offload_param=nvme zero.nvme_path=$tmp"; do
    read -r np stage offload <<<"$layout"
    rm -rf "$tmp/bits$np"
    train "$np" "bits$np" "${all[@]}" zero.stage="$stage" $offload
    expect "$np ranks at stage $stage${offload:+, offloaded}: planned is allocated" as_planned
    [ -n "$offload" ] || expect "--plan has said so" as_plan_says "$np" "$stage" "${all[@]}"
    expect "the same bits" same_model "$(newest bits1)" "$(newest "bits$np")"
    expect "metrics are the same" same_told bits1 "bits$np"
done
expect "--plan reports the rollout" grep -q "^rollout: at most .* completions per rank at a time, each of at most 6 new tokens, for at most [0-9]* prompts of 8;" "$tmp/.plan"
train 2 halves "${all[@]}" run.max_steps=3
cp -r "$tmp/halves" "$tmp/changed"
ends "resumed with other reward functions" 0 train 2 changed "${all[@]}" run.max_steps=4 checkpoint.resume=auto grpo.overlong_cache=0
expect_text "a generation with other rewards is discarded" 'rollout in the checkpoint is discarded and generated again: its rewards come from other functions'
train 3 halves "${all[@]}" zero.stage=2 checkpoint.resume=auto
expect "resumed inside a generation, on other ranks: the same bits" same_model "$(newest bits1)" "$(newest halves)"
expect "metrics are the same" same_told bits1 halves

# Other advantages: the same bits and metrics, also resumed inside a generation.
for advantage in rloo reinforce++; do
    other=("${all[@]}" grpo.advantage=$advantage grpo.reward_clip_range=0,0.9)
    for layout in "1 0" "3 3"; do
        read -r np stage <<<"$layout"
        train "$np" "$advantage$np" "${other[@]}" zero.stage="$stage"
        expect "$advantage on $np ranks at stage $stage: planned is allocated" as_planned
        [ "$np" = 1 ] || expect "--plan has said so" as_plan_says "$np" "$stage" "${other[@]}"
    done
    expect "the same bits" same_model "$(newest "${advantage}1")" "$(newest "${advantage}3")"
    expect "metrics are the same" same_told "${advantage}1" "${advantage}3"
    train 2 "$advantage-halves" "${other[@]}" run.max_steps=3
    train 3 "$advantage-halves" "${other[@]}" zero.stage=2 checkpoint.resume=auto
    expect "resumed inside a generation: the same bits" same_model "$(newest "${advantage}1")" "$(newest "$advantage-halves")"
    expect "metrics are the same" same_told "${advantage}1" "$advantage-halves"
done

# Timing of a step with a generation: each part is reported, and their sum is at most the step time.
DTRAIN_FAULT=rollout.score:0:1:slow train 2 timed "${all[@]}" run.max_steps=1 log.wall_clock_breakdown=true log.report_to="stdout, jsonl"
expect_text "the log says how long scoring will take" 'step 1/1  [0-9]+ of 12 micro-batches scored  left [0-9]'
for group in rollout score reward forward backward; do
    expect "milliseconds of $group" above timed "ms/${group}_min" 0
done
expect "of which no more are for rollouts, scores and rewards than a step has" python3 - "$tmp/timed/metrics.jsonl" <<'PY'
import json, sys
for line in map(json.loads, open(sys.argv[1])):
    assert sum(line[f"ms/{group}_min"] for group in ("rollout", "score", "reward", "forward", "backward")) <= 1e3 * line["step_time"], line
PY

full_only

# A signal or a kill during a rollout: the step is abandoned, and the resumed run has the same bits.
DTRAIN_FAULT=rollout.generate:0:2:stop start 2 stopped "${all[@]}"
stop_at stopped 1 TERM
ends "a signal within a rollout" 75 finish stopped
train 1 stopped "${all[@]}" checkpoint.resume=auto
expect "a run resumes after a signal with the same bits" same_model "$(newest bits1)" "$(newest stopped)"
RUN_TIMEOUT=60 DTRAIN_FAULT=rollout.score:1:4:kill train 2 killed "${all[@]}" checkpoint.save_steps=1
expect "a rank is killed while a generation is scored" test "$code" != 0
train 3 killed "${all[@]}" checkpoint.save_steps=1
expect "a run resumes after a kill with the same bits" same_model "$(newest bits1)" "$(newest killed)"

# Another run can replay the written completions and rewards. Omitted groups are not in the file. Ratios of the
# scorer's probabilities to the sampler's are those of whole completions; in bf16 they are off by what digits cannot hide.
few=(run.max_steps=4 run.reproducible=true batch.micro_batch_size=2 data.shuffle=false grpo.num_iterations=2 grpo.num_generations=2 precision.dtype=bf16 log.rollouts=true)
train 2 written "${few[@]}" data.train="$tmp/prompts.h5" "grpo.reward_funcs=command:bash $tmp/reward.sh" grpo.dynamic_sampling=true
expect "groups were left out" above written grpo/sampling_rounds 1
train 1 overlong "${few[@]}" run.max_steps=1 data.train="$tmp/prompts.h5" "grpo.reward_funcs=command:bash $tmp/reward.sh" grpo.overlong_max_length=1 grpo.overlong_cache=1
expect_text "the penalty begins at overlong_max_length - overlong_cache" 'a completion of 6 tokens, cut, reward.sh [0-9.]*, overlong -1:'
train 1 replayed "${few[@]}" grpo.rollouts="$tmp/written/rollouts.jsonl"
expect "completions and rewards that were written: the same bits" same_model "$(newest written)" "$(newest replayed)"
expect "the gap between sampler and scorer is that of the written log-probabilities" python3 - "$tmp/written" <<'PY'
import json, math, sys
groups = {}
for line in map(json.loads, open(sys.argv[1] + "/rollouts.jsonl")):
    groups.setdefault(line["step"], []).extend(zip(line["logps"], line["old_logp"]))
for line in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")):
    both = groups[max(step for step in groups if step <= line["step"])]
    gaps = [abs(a - b) for sampled, scored in both for a, b in zip(sampled, scored)]
    ratios = [math.exp(sum(scored) - sum(sampled)) for sampled, scored in both]
    want = {"sampling_logp_difference/mean": sum(gaps) / len(gaps), "sampling_logp_difference/max": max(gaps), "importance_sampling_ratio/min": min(ratios),
            "importance_sampling_ratio/mean": sum(ratios) / len(ratios), "importance_sampling_ratio/max": max(ratios)}
    assert max(gaps) < 0.5, max(gaps)  # of rows that were moved both; where bf16 is multiplied as fp32 (kernels v3) there is hardly any
    for name, x in want.items():
        assert abs(line["grpo/sampling/" + name] - x) < 1e-6, (line["step"], name, line["grpo/sampling/" + name], x)  # numbers have 9 digits
PY

learn=(data.train="$tmp/prompts.h5" "grpo.reward_funcs=command:bash $tmp/reward.sh" run.max_steps=40 batch.train_batch_size=32 batch.micro_batch_size=16
    grpo.num_generations=8 grpo.max_completion_length=8 optimizer.lr=2e-2 optimizer.weight_decay=0)
DTRAIN_FAULT=generate.pass:0:4:slow train 2 learns "${learn[@]}" run.reproducible=true log.report_to="stdout, jsonl"
expect_text "the log says how long a rollout will take, before one is over" 'step 1/40  [0-9]+ of 32 completions  [0-9.]+k? tok/s  left [0-9]'
expect_text "a step shows the mean reward" "step 40/40 .*  loss [-0-9.]+  reward $(printf %.4g "$(number learns grpo/reward | tail -1)")  grad "
expect "the time of reward functions is recorded" test "$(number learns grpo/time/reward | awk '$1 > 0' | wc -l)" = 40
expect "rewards rise from chance" awk 'BEGIN { getline x; exit !(x < 0.3) }' <(number learns grpo/reward)
expect "to above 0.9" above learns grpo/reward 0.9
train 2 others "${learn[@]}" grpo.advantage=rloo grpo.loss_type=grpo grpo.importance_sampling_level=product grpo.beta=0.01
expect "rloo learns with the divergence in the reward" above others grpo/reward 0.8
train 2 alone "${learn[@]}" grpo.num_generations=1 grpo.advantage=reinforce++ run.max_steps=60
expect "reinforce++ learns from one completion per prompt" above alone grpo/reward 0.8
train 1 validated "${learn[@]}" run.reproducible=true data.validation="$tmp/valid.h5" data.validation_steps=20 grpo.overlong_cache=2 grpo.overlong_penalty=0
expect "a validation completes and rewards other prompts" above validated grpo/validation_reward 0.9
expect "the validation loss is minus the reward" awk 'BEGIN { getline x; getline y; exit !(x < 0) }' <(number validated validation_loss)
expect "each prompt as often as in training" test "$(number validated validation_samples | tail -1)" = 56
expect "validation does not change training" same_model "$(newest learns)" "$(newest validated)"

# Two generations, then the validation of step 2.
few=("${learn[@]}" run.reproducible=true run.max_steps=4 data.validation="$tmp/valid.h5" data.validation_steps=2)
train 2 seen "${few[@]}"
DTRAIN_FAULT=rollout.generate:0:3:stop start 2 unseen "${few[@]}"
stop_at unseen 1 TERM
ends_saying "a signal within a validation" 75 'the validation of step 2 was interrupted' finish unseen
train 1 unseen "${few[@]}" checkpoint.resume=auto
is "the resumed run does the validation first" "$(number unseen grpo/validation_reward)" "$(number seen grpo/validation_reward)"
expect "the resumed run ends with the same bits" same_model "$(newest seen)" "$(newest unseen)"

cpu_only

refuse() { # NAME TEXT ARGS...
    local name=$1 text=$2
    shift 2
    ends_saying "$name: exit code" 64 "$text" train 1 refused data.train="$tmp/prompts.h5" grpo.reward_funcs=length:3 "$@"
}
refuse "no reward functions" 'reward_funcs: expected reward functions or grpo.environment, found none' grpo.reward_funcs=
refuse "groups that do not divide" 'num_generations: a generation has 8 completions: expected a multiple of num_generations = 3; the next one is 9' grpo.num_generations=3
refuse "part of a step" 'generation_batch_size: expected a multiple or a divisor of batch.train_batch_size = 8, found 12; the nearest multiple above is 16' grpo.generation_batch_size=12
refuse "parts of generations" 'steps_per_generation: expected a multiple or a divisor of the 3 micro-steps of an optimizer step' \
    batch.train_batch_size=12 batch.micro_batch_size=4 grpo.steps_per_generation=2
refuse "a generation twice in a step" 'num_iterations: expected 1, because an optimizer step uses several generations .4 completions per generation, 8 per step.' \
    grpo.generation_batch_size=4 grpo.num_iterations=2
refuse "both sizes of a generation" 'expected only one of steps_per_generation and generation_batch_size' grpo.generation_batch_size=16 grpo.steps_per_generation=2
refuse "no token to draw from" 'grpo.top_p: expected a number above 0, found 0' grpo.top_p=0
expect "the invalid key is reported once" test "$(grep -c top_p "$out")" = 1
refuse "a group of one" 'num_generations: expected at least 2, because advantage = group' grpo.num_generations=1
refuse "no group to compare" 'dynamic_sampling: expected false with num_generations = 1' grpo.num_generations=1 grpo.advantage=reinforce grpo.dynamic_sampling=true
refuse "a divisor of no group" 'scale_rewards: expected the default, because advantage = rloo' grpo.advantage=rloo grpo.scale_rewards=none
refuse "twice normalised" 'normalize_advantages: expected false, because advantage = reinforce\+\+ always' grpo.advantage=reinforce++ grpo.normalize_advantages=true
refuse "normalised by functions" 'multi_objective_aggregation: expected sum_then_normalize' grpo.advantage=rloo grpo.multi_objective_aggregation=normalize_then_sum
refuse "a range of no sum" 'reward_clip_range: expected none with multi_objective_aggregation' grpo.reward_clip_range=0,1 grpo.multi_objective_aggregation=normalize_then_sum
refuse "a ratio of a reward" 'use_bias_correction_kl: expected false, because the divergence is part of the reward' grpo.advantage=rloo grpo.beta=0.1 grpo.use_bias_correction_kl=true
refuse "an estimator of a reward" 'kl_estimator: expected the default' grpo.advantage=rloo grpo.beta=0.1 grpo.kl_estimator=k2
refuse "no range" 'reward_clip_range: expected two numbers, MIN, MAX, the lower one first; found 2,1' grpo.reward_clip_range=2,1
refuse "a model without a name" 'grpo.reward_funcs: model:: expected model:DIRECTORY' grpo.reward_funcs=model:
echo '{"prompt_ids": [1' >"$tmp/broken.jsonl"
ends "a broken file of completions: exit code" 65 train 1 refused grpo.rollouts="$tmp/broken.jsonl"
expect "a broken file of completions: one error" test "$(grep -E 'error: |broken.jsonl:1: not valid JSON' -c "$out")" = 1
refuse "a penalty longer than the configured limit" 'overlong_cache: expected at most the maximum completion length, 2 tokens, found 3' grpo.overlong_max_length=2 grpo.overlong_cache=3
refuse "a penalty longer than completions" 'overlong_cache: expected at most the maximum completion length, 6 tokens, found 7' grpo.overlong_cache=7
run 1 ./dtrain /dev/stdin run.task=grpo run.output_dir="$tmp/refused" model.model_type=llama
expect_text "no model to start from" 'path .default.: expected a model to align, found none'
expect_text "missing prompts are reported" 'train .default.: expected dataset files for task grpo'
train 1 refused data.train="$tmp/prompts.h5" grpo.reward_funcs=length:3 grpo.beta=0 grpo.reference_path="$tmp/nowhere" grpo.sync_reference_steps=2 --check
expect "beta = 0: keys of the reference are reported as unused" [ "$(grep -cE 'warning: grpo.(reference_path|sync_reference_steps) is not used: with beta = 0' "$out")" = 2 ]

for point in rollout.generate rollout.share rollout.score rollout.share_scores reward.ask reference.sync zero.reduce zero.update; do
    fails_alone 1 $point 2 train 2 "failed-$point" "${all[@]}" zero.stage=3
done
e2e_done

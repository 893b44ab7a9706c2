#!/bin/bash
# e2e_ppo.sh - proximal policy optimisation. Losses, metrics and final weights match PyTorch's for the same completions. Bits do not depend
# on the number of ranks or the stage, also after a resume inside a rollout. Also: learning; exports; plans; errors; failures of one rank.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/ppo
cat >"$tmp/tiny.ini" <<'INI'
[run]
task = ppo
max_steps = 12
threads = 1
[model]
path = tests/data/dpo/start
tokenizer = bytes
[data]
seq_len = 32
[ppo]
response_length = 8
num_mini_batches = 2
num_ppo_epochs = 2
[optimizer]
betas = 0.9, 0.999
eps = 1e-8
[log]
report_to = jsonl
[checkpoint]
save_steps = 0
INI

# ---- the same completions ---------------------------------------------------------------------------------------------------------------------

replay() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    train "$np" "$dir" ppo.rollouts="$fixture/rollouts.jsonl" ppo.value_path=tests/data/rm/start data.shuffle=false batch.train_batch_size=4 batch.micro_batch_size=1 \
        optimizer.lr=3e-3 optimizer.weight_decay=0.1 optimizer.max_grad_norm=0.3 scheduler.type=linear "$@"
}
names="loss ppo/loss/policy ppo/loss/value ppo/policy/approxkl ppo/policy/clipfrac ppo/policy/entropy ppo/val/ratio ppo/val/ratio_var ppo/val/clipfrac ppo/objective/kl
    ppo/objective/entropy ppo/objective/non_score_reward ppo/objective/scores ppo/kl_coef lr grad_norm critic/grad_norm"
cost_names="ppo/loss/cost_value ppo/objective/costs ppo/lambda"
# The numbers have seven digits. fp32 keeps 1e-6 of log-probabilities and values; a gradient that is small against others of its tensor has that much of
# theirs, and Adam makes a step of full size of it: twelve steps make 1e-4 of a number of that, and of one near 0 as much of what it is a difference of.
like_pytorch() { # DIR RUN
    local all=$names columns=() name
    grep -q '"ppo/lambda"' "$tmp/$1/metrics.jsonl" && all="$names $cost_names"
    for name in $all; do
        number "$1" "$name" >"$tmp/.column.${#columns[@]}"
        columns+=("$tmp/.column.${#columns[@]}")
    done
    paste -d' ' "${columns[@]}" >"$tmp/.ours"
    awk -v n="$2" '/^run/ { k++; next } k == n' "$fixture/steps.txt" >"$tmp/.theirs"
    [ "$(wc -l <"$tmp/.ours")" = "$(wc -l <"$tmp/.theirs")" ] && paste -d' ' "$tmp/.ours" "$tmp/.theirs" | awk -v n="${#columns[@]}" '
        { for (i = 1; i <= n; i++) { d = $i - $(i + n); d = d < 0 ? -d : d; s = $(i + n); s = s < 0 ? -s : s
              if (NF != 2 * n || !(d <= 1e-4 * s + 1e-4)) { print "step", NR ", number", i ":", $i, $(i + n); bad = 1 } } }
        END { exit bad || NR == 0 }'
}
n=0
while read -r _ keys; do
    n=$((n + 1))
    replay 1 "run$n" $keys
    expect "${keys:-the defaults}: as PyTorch" like_pytorch "run$n" "$n"
done < <(grep '^run' "$fixture/steps.txt")
expect "the first ratio of each rollout is exactly 1" [ "$(number run1 ppo/val/ratio | awk 'NR % 4 == 1' | tr '\n' ' ')" = "1 1 1 " ]
expect "an early stop leaves steps out" grep -q '"step": 10,' "$tmp/run4/metrics.jsonl"
expect "the run ends at step 10" [ "$(number run4 step | tail -1)" = 10 ]
prints "total_episodes is rounded up to whole rollouts" 'done: 8 steps .8 of 8.' replay 1 episodes run.max_steps=0 ppo.total_episodes=9 log.report_to="stdout, jsonl"
expect_text "a step shows the mean score" 'step 8/8 .*  loss [-0-9.]+  scores [-0-9.e+]+  grad '
prints "of which dtrain-info knows" 'steps +8 of 8' run 0 ./dtrain-info "$tmp/episodes"
scores=$(printf %.4g "$(number episodes ppo/objective/scores | tail -1)")
expect_text "and which shows the score" "training +step 8: loss [-0-9.]+, scores $scores, grad_norm "
# A weight moves by at most the sum of the learning rates, 0.024 here; rounding changes less than a hundredth of that. (Attributes differ.)
same_weights() { h5diff -v -d 1e-4 "$fixture/final.h5" "$(newest run1)" "$1" "$1" | awk -v n="$2" '/^dataset/ { d++ } /^0 differences found/ { same++ } END { exit d != n || same < n }'; }
expect "the weights of the policy are PyTorch's" same_weights /model 21
expect "and those of the critic" same_weights /critic/model 21

# ---- ranks, stages, micro-batches -------------------------------------------------------------------------------------------------------------

for i in $(seq 1 30); do echo "{\"prompt\": \"$(printf '%s' abcdefghijklmnop | cut -c $((i % 9 + 1))-$((i % 9 + 1 + i % 4)))\"}"; done >"$tmp/prompts.jsonl"
data -o "$tmp/prompts.h5" "$tmp/prompts.jsonl"
# A reward of a program: how many tokens.
cat >"$tmp/count.sh" <<'SH'
while read -r line; do
    ids=${line##*\"completion_ids\":} commas=${ids//[!,]/}
    echo $((${#commas} + 1))
done
SH
generated=(data.train="$tmp/prompts.h5" ppo.reward_path=tests/data/rm/start ppo.reward_funcs="keywords:e, command:bash $tmp/count.sh" ppo.reward_weights=0.5,1,-0.1
    optimizer.lr=3e-3 optimizer.max_grad_norm=1 scheduler.type=linear run.max_steps=6)
generate() { train "$1" "$2" "${generated[@]}" "${@:3}"; }
safe=("${generated[@]}" batch.train_batch_size=12 batch.micro_batch_size=1 run.reproducible=true run.max_steps=8 ppo.cost_path=tests/data/rm/start
    ppo.adaptive_kl=true ppo.adaptive_kl_target=0.1 ppo.use_score_scaling=true ppo.target_kl=0.004 ppo.ent_coef=0.01)
bits() { train "$1" "$2" "${safe[@]}" "${@:3}"; }
same_run() { # A B
    local a b
    a=$(newest "$1") b=$(newest "$2")
    [ "$(basename "$a")" = "$(basename "$b")" ] && same_model "$a" "$b" && h5diff "$a" "$b" /critic /critic && h5diff "$a" "$b" /cost_critic /cost_critic && h5diff "$a" "$b" /task /task
}
ends "PPO-Lagrangian" 0 bits 1 bits1
expect "planned is allocated" as_planned
for layout in "2 2" "3 3" "4 1"; do
    set -- $layout
    bits "$1" "bits$1" zero.stage="$2"
    expect "the same bits on $1 ranks at stage $2" same_run bits1 "bits$1"
    expect "--plan knows what they allocate" as_plan_says "$1" "$2" "${safe[@]}"
done
expect "a critic starts from the reward model" grep -q 'critic, trained with the model: 8832 parameters' "$out"
bits 2 host zero.stage=3 zero.offload_optimizer=cpu zero.offload_param=cpu
expect "the same with states in host memory" same_run bits1 host
bits 1 file zero.stage=1 zero.offload_optimizer=nvme zero.nvme_path="$tmp"
expect "with those of the optimizer in a file" same_run bits1 file
bits 2 files zero.stage=3 zero.offload_optimizer=nvme zero.offload_param=nvme zero.nvme_path="$tmp"
expect "and with all in files" same_run bits1 files
expect "planned memory is allocated" as_planned
bits 2 part run.max_steps=3
bits 3 part zero.stage=3 checkpoint.resume=auto
expect "resumed inside a rollout, on other ranks: the same bits" same_run bits1 part

# ---- a critic from a reward model's checkpoint with adapters, also on experts: they are merged as in its export --------------------------------

cp "$tmp/tiny.ini" "$tmp/ppo.ini"
for i in $(seq 12); do echo "{\"prompt\": \"p $i\", \"chosen\": \"good $i\", \"rejected\": \"bad $i x\"}"; done >"$tmp/pairs.jsonl"
data -o "$tmp/pairs.h5" "$tmp/pairs.jsonl"
make_task rm model.path=tests/data/lora/moe model.tokenizer=bytes lora.r=3 lora.target_modules=q_proj lora.target_parameters=experts.gate_up_proj,experts.down_proj
ends "a reward model with adapters on experts" 0 train 2 judge data.train="$tmp/pairs.h5" batch.train_batch_size=4 run.max_steps=4 optimizer.lr=3e-2 checkpoint.export=hf
cp "$tmp/ppo.ini" "$tmp/tiny.ini"
for start in judge judge/hf; do
    generate 2 "of_${start/\//_}" model.path=tests/data/lora/moe ppo.value_path="$tmp/$start" zero.stage=3 run.max_steps=1
done
expect "a critic from its checkpoint is the exported one" close_numbers of_judge of_judge_hf ppo/loss/value 1e-5

full_only

# In the second rollout: a kill when completions are scored, a signal then and when they are generated. It is left, and made again.
RUN_TIMEOUT=60 DTRAIN_FAULT=rollout.share_scores:1:7:kill bits 2 killed checkpoint.save_steps=1
expect "a rank is killed while completions are scored" test "$code" != 0
bits 1 killed checkpoint.resume=auto
expect "a run resumes after a kill, on other ranks, with the same bits" same_run bits1 killed
while read -r signal point what; do
    DTRAIN_FAULT=$point:0:$what:stop start 2 "$signal" "${safe[@]}"
    stop_at "$signal" 1 "$signal"
    ends "$signal at $point" 75 finish "$signal"
    bits 3 "$signal" zero.stage=2 checkpoint.resume=auto
    expect "a run stopped by a signal resumes with the same bits" same_run bits1 "$signal"
done <<<"USR1 rollout.generate 2
TERM rollout.share_scores 6"
ends "the window of costs may have another size" 0 bits 2 part run.max_steps=9 checkpoint.resume=auto ppo.cost_window=5
generate 1 later batch.train_batch_size=4 batch.micro_batch_size=4 run.max_steps=1
generate 1 later batch.train_batch_size=4 batch.micro_batch_size=4 run.max_steps=2 checkpoint.resume=auto ppo.cost_path=tests/data/rm/start
expect_exit "costs that are asked for later: exit code" 64
expect_text "the key is named" 'cost_path.*has no cost_critic'
generate 1 later batch.train_batch_size=4 batch.micro_batch_size=4 run.max_steps=2 checkpoint.resume=auto ppo.value_path=tests/data/dpo/judge
expect_exit "a critic of another size: exit code" 64
expect_text "the key of the critic is named" 'value_path: .*critic/model.*expected the shape'
cp -r tests/data/rm/start "$tmp/start, again"
generate 1 comma batch.train_batch_size=4 batch.micro_batch_size=4 run.max_steps=1 "ppo.reward_path=$tmp/start, again"
expect_exit "a reward model may have a comma in its name" 0
expect "the command is one function" grep -q 'ppo/rewards/start__again/mean' "$tmp/comma/metrics.jsonl"
generate 1 micro1 batch.train_batch_size=8 batch.micro_batch_size=1
generate 2 micro4 batch.train_batch_size=8 batch.micro_batch_size=4 zero.stage=1
# Sums in another order: a few roundings of 6e-8 of losses of parts that are larger than the loss.
near() { paste -d' ' <(number "$1" loss) <(number "$2" loss) | awk '{ d = $1 - $2; if (NF != 2 || !(d < 1e-4 && d > -1e-4)) bad = 1 } END { exit bad || NR != 6 }'; }
expect "the same with other micro-batches" near micro1 micro4

# ---- learning ---------------------------------------------------------------------------------------------------------------------------------

train 2 learns data.train="$tmp/prompts.h5" ppo.reward_funcs=keywords:e ppo.kl_coef=0 run.max_steps=100 batch.train_batch_size=32 batch.micro_batch_size=16 optimizer.lr=1e-2 \
    optimizer.betas=0.9,0.99 optimizer.max_grad_norm=1 scheduler.type=constant checkpoint.export=hf
expect "the initial score is at chance level" awk -v s="$(number learns ppo/objective/scores | head -1)" 'BEGIN { exit !(s < 0.2) }'
expect "the score rises with training" awk -v s="$(number learns ppo/objective/scores | tail -1)" 'BEGIN { exit !(s > 0.9) }'
expect "the policy is exported, and its critic" [ -s "$tmp/learns/hf/model.safetensors" -a -s "$tmp/learns/critic/model.safetensors" ]
expect "the critic is exported with a scalar head" grep -q LlamaForSequenceClassification "$tmp/learns/critic/config.json"
generate 1 again batch.train_batch_size=4 batch.micro_batch_size=4 ppo.value_path="$tmp/learns/critic" run.max_steps=1 rec.catalogue=shop.txt
expect_exit "another run's critic is one to start from" 0
expect_text "an unused catalogue is reported" 'warning: rec.catalogue is not used: task ppo does not restrict completions to items'

# ---- plans, mistakes, failures ----------------------------------------------------------------------------------------------------------------

plan() { ./dtrain --plan --ranks 2 /dev/stdin run.task=ppo data.seq_len=32 ppo.response_length=8 batch.micro_batch_size=2 "$@" </dev/null 2>&1 | grep -E '^[0-3] +[0-9]'; }
plan model.path=tests/data/dpo/start ppo.reward_funcs=length:3 >"$tmp/.there"
plan model.config=tests/data/dpo/start/config.json ppo.reward_funcs=length:3 >"$tmp/.shape"
expect "--plan accepts missing models" sh -c "[ -s '$tmp/.there' ] && cmp '$tmp/.there' '$tmp/.shape'"
refuse() { # NAME CODE TEXT ARGS...
    local name=$1 want=$2 text=$3
    shift 3
    ends_saying "$name: exit code" "$want" "$text" train 1 refused batch.train_batch_size=4 batch.micro_batch_size=4 "$@"
}
refuse "no reward" 64 'reward_path .default.: expected a reward model, or reward_funcs, found none' data.train="$tmp/prompts.h5"
refuse "no prompts" 64 'train .default.: expected dataset files' ppo.reward_funcs=length:3
refuse "no validation, so no best model" 64 'load_best_model_at_end: task ppo has no validation' data.train="$tmp/prompts.h5" ppo.reward_funcs=length:3 \
    data.validation="$tmp/prompts.h5" checkpoint.load_best_model_at_end=true
refuse "a norm without a scale" 64 'use_score_norm: needs use_score_scaling' data.train="$tmp/prompts.h5" ppo.reward_funcs=length:3 ppo.use_score_norm=true
refuse "a coefficient that stays 0" 64 'adaptive_kl: expected false, or kl_coef above 0' data.train="$tmp/prompts.h5" ppo.reward_funcs=length:3 ppo.kl_coef=0 ppo.adaptive_kl=true
refuse "a multiplier between nothing" 64 'lambda_min: expected at most lambda_max = 1, found 2' data.train="$tmp/prompts.h5" ppo.reward_funcs=length:3 ppo.lambda_min=2 ppo.lambda_max=1
refuse "a multiplier that starts outside" 64 'lambda_init: expected a number from lambda_min = 2 to lambda_max = 3, found 1' data.train="$tmp/prompts.h5" ppo.reward_funcs=length:3 \
    ppo.lambda_min=2 ppo.lambda_max=3 ppo.lambda_init=1
refuse "a reference that is not there" 65 'reference_path: .*nowhere' data.train="$tmp/prompts.h5" ppo.reward_funcs=length:3 ppo.reference_path="$tmp/nowhere"
refuse "a critic that is not there" 65 'value_path: .*nowhere' data.train="$tmp/prompts.h5" ppo.reward_funcs=length:3 ppo.value_path="$tmp/nowhere"
refuse "no such token, which --check finds" 64 'stop_token: expected eos, a token of the vocabulary or its id, found nowhere' data.train="$tmp/prompts.h5" ppo.reward_funcs=length:3 \
    ppo.stop_token=nowhere --check
sed 's/, "rewards".*/}/' "$fixture/rollouts.jsonl" >"$tmp/bare.jsonl"
refuse "completions without rewards, likewise" 65 'bare.jsonl contains no rewards; set ppo.reward_path or ppo.reward_funcs' ppo.rollouts="$tmp/bare.jsonl" --check
refuse "one reward for two functions" 65 'expected 2 rewards per completion, one per reward function, found 1' ppo.rollouts="$fixture/rollouts.jsonl" ppo.reward_funcs=length:3,keywords:e
train 1 bare ppo.rollouts="$tmp/bare.jsonl" ppo.reward_funcs=length:3 batch.train_batch_size=4 batch.micro_batch_size=4 run.max_steps=1
expect_exit "completions of a file, judged by functions" 0
for point in rollout.generate rollout.share rollout.score task.score task.critic rollout.share_scores reward.ask zero.reduce zero.update; do
    fails_alone 1 $point 2 generate 2 "failed-$point" batch.train_batch_size=4 batch.micro_batch_size=2 zero.stage=3
done
e2e_done

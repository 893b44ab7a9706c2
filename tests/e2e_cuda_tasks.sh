#!/bin/bash
# e2e_cuda_tasks.sh - reward models, DPO, GRPO and PPO on a GPU. Metrics match those of the CPU for any number of ranks per GPU and any ZeRO
# stage, offloaded and in bf16. Completions are the same, and one rank and two give the same bits.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
unset DTRAIN_DEVICE # the CPU is the CPU here
data -o "$tmp/pairs.h5" tests/data/rm/pairs.jsonl
for i in $(seq 12); do echo "{\"prompt\": \"so is $i\"}"; done >"$tmp/prompts.jsonl"
data -o "$tmp/prompts.h5" "$tmp/prompts.jsonl"

make_task rm run.max_steps=3 batch.train_batch_size=4 batch.micro_batch_size=2
rm=(model.path=tests/data/rm/start data.train="$tmp/pairs.h5" rm.center_rewards_coefficient=0.01)
dpo=(data.train="$tmp/pairs.h5" dpo.loss_type=sigmoid,bco_pair,sft dpo.helpful_path=tests/data/rm/start dpo.harmless_path=tests/data/dpo/judge
    dpo.lambda_lr=0.5 dpo.sync_reference_steps=2)
grpo=(grpo.num_generations=4 grpo.max_completion_length=6 grpo.num_iterations=2 grpo.beta=0.1 grpo.sync_reference_steps=2 grpo.top_entropy_quantile=0.5
    grpo.ent_coef=0.05 grpo.temperature=0.8 log.rollouts=true)
ppo=(ppo.response_length=8 ppo.num_mini_batches=2 ppo.num_ppo_epochs=1 ppo.cost_path=tests/data/rm/start ppo.adaptive_kl=true
    ppo.adaptive_kl_target=0.1 ppo.use_score_scaling=true ppo.ent_coef=0.01 log.rollouts=true)
# Completions of the run's own, judged by a model on the device
own_grpo=(data.train="$tmp/prompts.h5" grpo.reward_funcs=model:tests/data/rm/start,length:3)
own_ppo=(data.train="$tmp/prompts.h5" ppo.reward_path=tests/data/rm/start)
given_grpo=(grpo.rollouts=tests/data/grpo/rollouts.jsonl)
given_ppo=(ppo.rollouts=tests/data/ppo/rollouts.jsonl ppo.value_path=tests/data/rm/start)

find_gpu "$tmp/tiny.ini" "${rm[@]}"

# Every metric but those of time and memory: "step name number" each.
other_metrics='time|per_second|memory|mfu'
metrics() { awk -v no="$other_metrics" '{ gsub(/[{}",:]/, " "); for (i = 1; i < NF; i += 2) if ($i !~ no) print $2, $i, $(i + 1) }' "$tmp/$1/metrics.jsonl"; }
distance() { # A B: the largest difference of a metric, as a part of it or of 1, and which it is
    paste -d' ' <(metrics "$1") <(metrics "$2") | awk '
        NF != 6 || $1 != $4 || $2 != $5 { print "nan other metrics:", $0; bad = 1; exit }
        { d = $3 - $6; d = d < 0 ? -d : d; s = $3 < 0 ? -$3 : $3; d /= s > 1 ? s : 1; if (!(d < worst)) { worst = d; what = $0 } }
        END { if (!bad) print NR ? worst : "nan", what }'
}
within() { # A B DISTANCE
    distance "$1" "$2" | tee "$tmp/.distance"
    awk -v most="$3" '{ exit !($1 != "nan" && $1 + 0 <= most) }' "$tmp/.distance"
}
completions() { sed 's/.*"completion_ids": *\(.*\), "completions".*/\1/' "$tmp/$1/rollouts.jsonl"; }
same_completions() { alike "$(completions "$1")" "$(completions "$2")"; }

# Sums of some fifty roundings of fp32 (6e-8) are off by 3e-6, and three steps at a high rate make ten times as much of that. In bf16 both are off from
# fp32, so from each other by twice as much as one; accuracies count signs of margins, which are 0 before the first step but for their roundings. There
# completions are given: another one may be drawn for a rounding of a probability.
for task in rm dpo grpo ppo; do
    declare -n common=$task own=own_$task given=given_$task
    ends "$task on the CPU" 0 train 1 $task run.task=$task "${common[@]}" "${own[@]}" run.device=cpu
    for layout in "1 0" "2 3" "2 3 zero.offload_optimizer=cpu zero.offload_param=cpu"; do
        read -r np stage offload <<<"$layout"
        on_gpu train "$np" $task-gpu run.task=$task "${common[@]}" "${own[@]}" zero.stage="$stage" $offload
        expect "$task on the GPU, ranks: $np, stage $stage${offload:+, offloaded}: the CPU's metrics" within $task $task-gpu 3e-5
        [ ! -e "$tmp/$task/rollouts.jsonl" ] || expect "completions match" same_completions $task $task-gpu
        rm -rf "$tmp/$task-gpu"
    done
    other_metrics+='|accuracies'
    for type in fp32 bf16; do train 1 $task-$type run.task=$task "${common[@]}" "${given[@]}" run.device=cpu precision.dtype=$type; done
    for layout in "1 0" "2 3"; do
        read -r np stage <<<"$layout"
        on_gpu train "$np" $task-gpu run.task=$task "${common[@]}" "${given[@]}" zero.stage="$stage" precision.dtype=bf16
        expect "$task in bf16, ranks: $np, stage $stage: the CPU's metrics" within $task-bf16 $task-gpu "$(distance $task-bf16 $task-fp32 | awk '{ print 2 * $1 }')"
        rm -rf "$tmp/$task-gpu"
    done
    other_metrics=${other_metrics%|*}
done
for task in grpo ppo; do
    declare -n common=$task own=own_$task
    for np in 1 2; do on_gpu train $np $task-bits$np run.task=$task run.reproducible=true "${common[@]}" "${own[@]}" zero.stage=$((3 * np - 3)); done
    expect "$task, reproducible: the same bits on one rank and on two" same_model "$(newest $task-bits1)" "$(newest $task-bits2)"
    expect "completions are the same" same_completions $task-bits1 $task-bits2
done
e2e_done

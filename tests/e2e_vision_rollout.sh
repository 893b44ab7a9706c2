#!/bin/bash
# e2e_vision_rollout.sh - rollouts of prompts with images. Ten steps of GRPO and PPO on given completions match plain PyTorch with transformers' model of
# each family, and GRPO TRL. Sampled runs have the same bits on any number of ranks, at any stage, resumed, adapted, with cached features. The sampler's
# log-probabilities are those of training. A model learns from rewards to name what it sees.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
vision=tests/data/vision all=tower,projector,llm
make_task grpo run.max_steps=10 data.shuffle=false batch.train_batch_size=8 batch.micro_batch_size=2 optimizer.lr=3e-4 optimizer.betas="0.9, 0.95" \
    optimizer.weight_decay=0 data.seq_len=160 vision.train=$all grpo.num_generations=4 grpo.max_completion_length=6 grpo.loss_type=grpo
of_model() { # MODEL: its prompts
    name=${1##*/} own="model.path=$vision/$1 data.train=$tmp/${1##*/}.h5"
    [ ! -e "$tmp/$name.h5" ] || return 0
    python3 tests/vision_records.py prompts "$vision/$1" >"$tmp/$name.jsonl"
    expect "$name: prompts" ./dtrain-data -q --kind prompts --tokenizer "$vision/$1" --images "$vision/$1" -o "$tmp/$name.h5" "$tmp/$name.jsonl"
}
given="grpo.rollouts=$vision/rollouts.jsonl grpo.beta=0.1 grpo.num_iterations=2"
like() { # DIR MODEL|trl [TASK]: PyTorch in fp64, as far off as in fp32; TRL, which computes in fp32
    python3 - "$tmp/$1/metrics.jsonl" "$2" "${3:-grpo}" >"$out" 2>&1 <<'PY'
import json, sys
want = json.load(open("tests/data/vision/rollouts.json"))[sys.argv[2]][sys.argv[3]]
names = {"grpo": ["loss", "grad_norm", "grpo/kl"], "ppo": ["ppo/loss/policy", "ppo/loss/value", "grad_norm", "critic/grad_norm"]}[sys.argv[3]]
found = [[r[n] for n in names] for r in map(json.loads, open(sys.argv[1])) if "loss" in r]
off = [max(abs(a - b) / max(1, abs(b)) for a, b in zip(x, y)) for x, y in zip(found, want["steps"])]
rough = want["fp32"]
assert len(found) == 10 and max(off) <= 2e-6 + 4 * rough, "off by %s, PyTorch by %g" % (off, rough)
PY
}
# PPO with a critic that is the model with a new head
python3 - $vision/rollouts.jsonl >"$tmp/single.jsonl" <<'PY'
import json, sys
for g in map(json.loads, open(sys.argv[1])):
    for ids, reward in zip(g["completion_ids"], g["rewards"]):
        print(json.dumps({"sample": g["sample"], "completion_ids": [ids], "rewards": [[reward]]}))
PY
ppo() { # NP DIR ARGS...
    train "$1" "$2" run.task=ppo ppo.response_length=6 ppo.num_mini_batches=1 ppo.num_ppo_epochs=2 $own ppo.value_path="$tmp/judges/$name" "${@:3}"
}
mkdir "$tmp/judges"
for model in hf/clip_llama grids/qwen3_vl hf/gemma3 grids/internvl hf/siglip_qwen2 grids/qwen2_5_vl grids/qwen3_vl_moe grids/qwen3_5 grids/qwen3_5_moe; do
    of_model $model
    train 1 "$name" $own $given
    expect "$name: as much memory as planned" as_planned
    expect "ten steps are those of plain PyTorch" like "$name" $model
    train 2 "$name-2" $own $given zero.stage=3 batch.micro_batch_size=1
    expect "$name: on two ranks at stage 3, with single completions" like "$name-2" $model
    python3 tests/vision_records.py score "$vision/$model" "$tmp/judges/$name"
    ppo 1 "ppo-$name" ppo.rollouts="$tmp/single.jsonl"
    expect "$name, ppo: as much memory as planned" as_planned
    expect "ten steps are those of plain PyTorch" like "ppo-$name" $model ppo
    ppo 2 "ppo-$name-2" ppo.rollouts="$tmp/single.jsonl" zero.stage=3
    expect "$name, ppo: on two ranks at stage 3" like "ppo-$name-2" $model ppo
done
of_model hf/clip_llama
expect "and those of TRL's GRPOTrainer" like clip_llama trl
images_of() { # DIR
    python3 -c 'import json, sys; print(round(sum(r["images_per_second"] * r["step_time"] for r in map(json.loads, open(sys.argv[1])) if "loss" in r)))' "$tmp/$1/metrics.jsonl"
}
train 1 fours $own $given batch.micro_batch_size=4
is "answers of a micro-batch share the images of their prompt" "$(($(images_of fours) * 2))" "$(images_of clip_llama)"

# ---- sampled
of_model hf/clip_llama
sampled() { # NP DIR ARGS...
    train "$1" "$2" $own run.reproducible=true run.max_steps=4 batch.train_batch_size=12 batch.micro_batch_size=1 grpo.reward_funcs=length:3:5 grpo.beta=0.1 grpo.num_iterations=2 \
        data.shuffle=true log.rollouts=true "${@:3}"
}
no_gap() { number "$1" grpo/sampling/sampling_logp_difference/max | awk -v most="$2" '!($1 <= most) { bad = 1 } END { exit bad || !NR }'; }
sampled 1 ref
expect "as much memory as planned" as_planned
expect "the sampler's log-probabilities are those of training" no_gap ref 1e-5
while read -r np stage more; do
    sampled "$np" "same$np$stage" zero.stage="$stage" $more
    expect "$np ranks at stage $stage${more:+, ${more//$tmp/}}: as much memory as planned" as_planned
    expect "the same bits" same_model "$(newest ref)" "$(newest "same$np$stage")"
    is "and completions" "$(sed 's/"step"/\n&/g' "$tmp/same$np$stage/rollouts.jsonl")" "$(sed 's/"step"/\n&/g' "$tmp/ref/rollouts.jsonl")"
done <<LAYOUTS
2 1 model.activation_checkpointing=selective
2 2 zero.offload_optimizer=cpu
3 3 model.activation_checkpointing=block
LAYOUTS
sampled 2 planned zero.stage=3
expect "--plan counts images" as_plan_says 2 3 $own run.reproducible=true batch.train_batch_size=12 batch.micro_batch_size=1 grpo.reward_funcs=length:3:5 grpo.beta=0.1 grpo.num_iterations=2
expect "and reports them" grep -q '^micro-batch: at most [0-9]* tokens and 2 images of 9 tokens each' "$tmp/.plan"
sampled 3 part run.max_steps=3 zero.stage=3
sampled 2 part zero.stage=2 checkpoint.resume=auto
expect "resumed within a generation, on other ranks: the same bits" same_model "$(newest ref)" "$(newest part)"
RUN_TIMEOUT=60 DTRAIN_FAULT=rollout.generate:1:2:kill sampled 2 killed checkpoint.save_steps=1 zero.stage=3
prints "a run resumes after a kill" "resumed from .*step-00000002.h5" sampled 2 killed checkpoint.save_steps=1 zero.stage=3
expect "with the same bits" same_model "$(newest ref)" "$(newest killed)"
sed 's/"prompt_ids": [^]]*\], //' "$tmp/ref/rollouts.jsonl" >"$tmp/own.jsonl"
sampled 2 replayed grpo.rollouts="$tmp/own.jsonl" grpo.reward_funcs=
is "its rollouts.jsonl replayed: the same losses" "$(losses replayed)" "$(losses ref)"
for model in grids/qwen3_vl grids/internvl hf/gemma3 grids/qwen3_5; do
    of_model $model
    sampled 1 "s-$name"
    expect "$name: the sampler's log-probabilities are those of training" no_gap "s-$name" 5e-5
    sampled 3 "s-$name-3" zero.stage=3
    expect "the same bits on three ranks" same_model "$(newest "s-$name")" "$(newest "s-$name-3")"
    sampled 1 "f-$name" vision.train=projector,llm
    sampled 2 "f-$name-2" vision.train=projector,llm vision.feature_cache="$tmp/features" zero.stage=2
    expect "$name with cached features: as much memory as planned" as_planned
    expect "the same bits" same_model "$(newest "f-$name")" "$(newest "f-$name-2")"
done
of_model hf/clip_llama
sampled 1 bf16 precision.dtype=bf16
sampled 2 bf16-2 precision.dtype=bf16 zero.stage=3
expect "bf16: the same bits on two ranks" same_model "$(newest bf16)" "$(newest bf16-2)"
for parts in llm tower,projector,llm; do
    lora="lora.r=2 lora.target_modules=all-linear lora.parts=$parts vision.train=${parts#tower,projector,}"
    sampled 1 "lora-$parts" $lora
    sampled 3 "lora-$parts-3" $lora zero.stage=3
    expect "adapters, $parts: the same bits on three ranks" same_model "$(newest "lora-$parts")" "$(newest "lora-$parts-3")"
done
sampled 2 beams grpo.rollout=beam grpo.beta=0
expect_exit "groups of a beam search" 0
sampled 2 more data.validation="$tmp/clip_llama.h5" data.validation_steps=2 grpo.dynamic_sampling=true grpo.top_entropy_quantile=0.5 batch.micro_batch_size=3
expect_exit "validation, dynamic sampling, entropies" 0

# ---- ppo, with a reward model and a critic that see the images
sampled_ppo() { # NP DIR ARGS...
    ppo "$1" "$2" ppo.reward_path="$tmp/judges/$name" run.reproducible=true run.max_steps=6 batch.micro_batch_size=1 data.shuffle=true "${@:3}"
}
for model in hf/clip_llama grids/qwen3_vl; do
    of_model $model
    sampled_ppo 1 "p-$name" vision.train=projector,llm
    expect "$name, ppo: as much memory as planned" as_planned
    sampled_ppo 4 "p-$name-4" vision.train=projector,llm zero.stage=3 model.activation_checkpointing=block zero.offload_optimizer=cpu
    expect "the same bits on four ranks" same_model "$(newest "p-$name")" "$(newest "p-$name-4")"
    sampled_ppo 2 "c-$name" vision.train=projector,llm vision.feature_cache="$tmp/features" zero.stage=1
    expect "cached features: as much memory as planned" as_planned
    expect "the same bits" same_model "$(newest "p-$name")" "$(newest "c-$name")"
    sampled_ppo 2 "r-$name" vision.train=projector,llm run.max_steps=3 zero.stage=2
    sampled_ppo 1 "r-$name" vision.train=projector,llm checkpoint.resume=auto
    expect "resumed: the same bits" same_model "$(newest "p-$name")" "$(newest "r-$name")"
done
of_model hf/clip_llama
sampled_ppo 1 costs ppo.cost_path="$tmp/judges/clip_llama"
sampled_ppo 2 costs-2 ppo.cost_path="$tmp/judges/clip_llama" zero.stage=3
expect "with costs: the same bits on two ranks" same_model "$(newest costs)" "$(newest costs-2)"
sampled_ppo 2 adapted lora.r=2 vision.train=llm checkpoint.export=hf
expect_exit "adapters, and an export of policy and critic" 0
expect "the critic is a classifier" grep -q LlavaForSequenceClassification "$tmp/adapted/critic/config.json"

# ---- distillation from a teacher that sees the images
of_distill() { # NP DIR ARGS...
    train "$1" "$2" run.task=distill run.reproducible=true run.max_steps=4 batch.train_batch_size=6 batch.micro_batch_size=1 \
        distill.teacher_path=$vision/hf/clip_llama distill.max_new_tokens=6 model.path=$vision/hf/clip_llama "${@:3}"
}
expect "records with images" ./dtrain-data -q --tokenizer $vision/hf/clip_llama --images $vision/hf/clip_llama -o "$tmp/records.h5" $vision/run/records.jsonl
for case in "data distill.lmbda=0 data.train=$tmp/records.h5" "own distill.lmbda=1 data.train=$tmp/clip_llama.h5" "teacher distill.seq_kd=true data.train=$tmp/records.h5"; do
    of_distill 1 "d-${case%% *}" ${case#* }
    expect "distill, answers of the ${case%% *}: as much memory as planned" as_planned
    of_distill 3 "d-${case%% *}-3" ${case#* } zero.stage=3
    expect "the same bits on three ranks" same_model "$(newest "d-${case%% *}")" "$(newest "d-${case%% *}-3")"
done
of_distill 1 d-mixed distill.lmbda=0.5 data.train="$tmp/records.h5" vision.train=projector,llm
of_distill 2 d-mixed-2 distill.lmbda=0.5 data.train="$tmp/records.h5" vision.train=projector,llm vision.feature_cache="$tmp/features"
expect "data and own answers with cached features: the same bits" same_model "$(newest d-mixed)" "$(newest d-mixed-2)"
expect "the teacher is the student: no loss at first" awk 'NR == 1 { exit !($2 < 1e-6 && $2 > -1e-6) }' <(losses d-own)

# ---- reward models and programs
python3 tests/vision_records.py score $vision/hf/clip_llama "$tmp/judge"
sampled 1 judged grpo.reward_funcs=model:"$tmp/judge"
expect "a reward model that sees the images: as much memory as planned" as_planned
sampled 3 judged-3 grpo.reward_funcs=model:"$tmp/judge" zero.stage=3
expect "the same bits on three ranks" same_model "$(newest judged)" "$(newest judged-3)"
python3 - "$tmp/judged/rollouts.jsonl" >"$tmp/answers.jsonl" <<'PY'
import json, sys
for g in map(json.loads, open(sys.argv[1])):
    for ids, reward in zip(g["completion_ids"], g["rewards"]):
        if 60 not in ids:  # as a prompt, dtrain-generate would look for another image
            print(json.dumps({"ids": g["prompt_ids"] + ids, "want": reward[0], "images": g["record"].get("images", [])}))
PY
run 0 ./dtrain-generate --score "$tmp/judge" --answers "$tmp/answers.jsonl" --jsonl -o "$tmp/scored"
expect "rewards are those of dtrain-generate --score" python3 - "$tmp/scored" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert len(lines) > 12 and any(x["images"] for x in lines) and all(abs(x["reward"] - x["want"]) < 1e-5 * max(1, abs(x["want"])) for x in lines), lines
PY
cat >"$tmp/program.py" <<'PY'
import json, os, sys
for line in sys.stdin:
    paths = json.loads(line).get("images", [])
    print(json.dumps(len(paths) + all(os.path.exists(p) for p in paths)), flush=True)
PY
sampled 2 program grpo.reward_funcs="command:python3 $tmp/program.py"
expect "programs receive the record's images" python3 - "$tmp/program/rollouts.jsonl" <<'PY'
import json, sys
groups = [json.loads(line) for line in open(sys.argv[1])]
assert all(r == [len(g["record"].get("images", [])) + 1] for g in groups for r in g["rewards"]), groups
PY

# ---- what is refused
check() { local name=$1 code=$2 text=$3; shift 3; wrong "$name" "$code" "$text" ./dtrain --check "$tmp/tiny.ini" $own run.output_dir="$tmp/wrong" "$@"; }
check "a model without a tower" 65 'train: .*clip_llama.h5 has images, and the model has no vision tower' model.path=$vision/hf/clip_llama_text vision.train="projector, llm" grpo.reward_funcs=length:3
check "a reference without one" 65 'clip_llama.h5 has images, and the reference has no vision tower' grpo.reference_path=$vision/hf/clip_llama_text grpo.beta=0.1 grpo.reward_funcs=length:3
sed 's/"sample": 3/"sample": 7/' $vision/rollouts.jsonl >"$tmp/bad.jsonl"
check "a prompt that does not exist" 65 'bad.jsonl:4: sample: expected the number of the prompt in data.train, which has images: from 0 to 6' grpo.rollouts="$tmp/bad.jsonl"
sed '2s/"sample": 1,/"sample": 1, "prompt_ids": [1, 2],/' $vision/rollouts.jsonl >"$tmp/bad.jsonl"
wrong "another prompt" 65 'bad.jsonl:2: prompt_ids: expected those of sample 1 of data.train' ./dtrain "$tmp/tiny.ini" $own run.output_dir="$tmp/wrong" grpo.rollouts="$tmp/bad.jsonl"

# ---- learning: a model that guesses colours learns by rewards to look
mkdir "$tmp/small" "$tmp/squares"
sed -E 's/"image_size": 32/"image_size": 16/; s/96/32/; s/192/64/; s/128/64/; s/"intermediate_size": 256/"intermediate_size": 128/; s/_layers": 3/_layers": 2/' input/vision.json >"$tmp/small/config.json"
sed 's/32/16/g' input/preprocessor_config.json >"$tmp/small/preprocessor_config.json"
for kind in guesses prompts; do LC_ALL=C awk -v out="$tmp/squares" -v images=300 -v kind=$kind -v seed=${#kind} -f tests/coloured_pictures.awk; done
images="--images $tmp/small --image-tokens 4 --image-token # --tokenizer bytes"
expect "guesses" ./dtrain-data -q $images -o "$tmp/guesses.h5" "$tmp/squares/guesses.jsonl"
expect "pictures" ./dtrain-data -q --kind prompts $images -o "$tmp/pictures.h5" --validation "$tmp/new.h5" --validation-fraction 0.25 "$tmp/squares/prompts.jsonl"
train 2 guesses run.task=sft model.path= model.config="$tmp/small/config.json" model.tokenizer=bytes run.max_steps=150 data.seq_len=40 data.train="$tmp/guesses.h5" \
    batch.train_batch_size=16 batch.micro_batch_size=8 optimizer.lr=1e-3 data.shuffle=true checkpoint.export=hf
ends "rewards for the right colour" 0 train 2 learns model.path="$tmp/guesses/hf" data.train="$tmp/pictures.h5" data.validation="$tmp/new.h5" data.seq_len=40 run.max_steps=150 \
    batch.train_batch_size=64 batch.micro_batch_size=16 grpo.num_generations=8 grpo.max_completion_length=8 grpo.reward_funcs=accuracy optimizer.lr=1e-3 data.shuffle=true \
    data.validation_steps=150
expect "it names the colour in new pictures; guesses are right in a quarter" above learns grpo/validation_reward 0.45
e2e_done

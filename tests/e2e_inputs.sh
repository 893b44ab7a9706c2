#!/bin/bash
# e2e_inputs.sh - the configurations of input/: --plan accepts each of them unchanged; those of input/models have the shapes of the
# published models.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
export DATA=$tmp # some files name their data so

# Parameters as counted in the published safetensors files, without multi-token prediction, and without the copy of the embedding that those of Qwen3-0.6B and -1.7B hold as lm_head.
# Of Qwen3.5 the text model and the whole model, of Mistral the text model.
published='
qwen2.5-0.5b 494032768
qwen2.5-1.5b 1543714304
qwen2.5-3b 3085938688
qwen2.5-7b 7615616512
qwen2.5-14b 14770033664
qwen2.5-32b 32763876352
qwen2.5-72b 72706203648
qwen3-0.6b 596049920
qwen3-1.7b 1720574976
qwen3-4b 4022468096
qwen3-8b 8190735360
qwen3-14b 14768307200
qwen3-32b 32762123264
qwen2.5-vl-3b 3754622976
qwen2.5-vl-7b 8292166656
qwen2.5-vl-32b 33452718336
qwen2.5-vl-72b 73410777344
qwen3-vl-4b 4437815808
qwen3-vl-8b 8767123696
qwen3-vl-30b-a3b 31070754032
qwen1.5-moe-a2.7b 14315784192
qwen3-30b-a3b 30532122624
qwen3-next-80b-a3b 79674391296
mixtral-8x7b 46702792704
deepseek-v2-lite 15706484224
deepseek-v3 671026419200
moonlight-16b-a3b 15960110208
glm-4.5-air 106852251264
gpt-oss-20b 20914757184
gpt-oss-120b 116829156672
llama-3.1-8b 8030261248
llama-3.1-70b 70553706496
llama-3.1-405b 405853388800
llama-3.2-1b 1235814400
llama-3.2-3b 3212749824
mistral-7b-v0.1 7241732096
mistral-7b-v0.3 7248023552
mistral-small-24b 23572403200
qwen3-235b-a22b 235093634560
gemma-2-2b 2614341888
gemma-2-9b 9241705984
gemma-2-27b 27227128320
gemma-3-270m 268098176
gemma-3-1b 999885952
gemma-3-4b 4300079472
gemma-3-12b 12187325040
gemma-3-27b 27432406640
internvl3-8b 7944373760
granite-3.3-2b 2533539840
granite-3.3-8b 8170864640
smollm3-3b 3075098624
olmo-2-1b 1484916736
olmo-2-7b 7298617344
olmo-2-13b 13716198400
olmo-3-7b 7298011136
olmo-3-32b 32233522176
seed-oss-36b 36151104512
phi-3-mini 3821079552
phi-4 14659507200
glm-4-9b 9400279040
glm-4-32b 32566081536
internlm3-8b 8804241408
internlm2.5-7b 7737708544
glm-4-9b-chat 9399951360
chatglm3-6b 6243584000
qwen3.5-0.8b 752393024 852985920
qwen3.5-2b 1881825088 2213241664
qwen3.5-4b 4205751296 4539265536
qwen3.5-9b 8953803264 9409813744
qwen3.5-27b 26895998464 27356728560
qwen3.5-35b-a3b 34660610688 35107181936
qwen3.5-122b-a10b 122111526912 122562817776
qwen3.5-397b-a17b 396346350336 396802360816
yi-1.5-6b 6061035520
yi-1.5-9b 8829407232
yi-1.5-34b 34388917248
deepseek-r1-qwen-1.5b 1777088000
deepseek-r1-qwen-7b 7615616512
deepseek-r1-qwen-14b 14770033664
deepseek-r1-qwen-32b 32763876352
deepseek-r1-llama-8b 8030261248
deepseek-r1-llama-70b 70553706496
mistral-small-3.1-24b 23572403200
ministral-3-3b 3429006336
ministral-3-8b 8489553920
ministral-3-14b 13506073600
phi-4-mini 3836021760
'
plan() { run 0 ./dtrain --plan --ranks "$1" --ranks-per-node 8 --host-memory 2048GiB "${@:2}"; }
has_parameters() { # NAME COUNT KEYS: a model's number of parameters
    plan 1024 "input/models/$1.ini" "${@:3}"
    if [ "$code" = 0 ] && grep -q "^model: $2 parameters" "$out"; then ok "$* parameters"
    else not_ok "$* parameters" "exit code $code, $(grep '^model:' "$out")"; fi
}

while read -r name count whole; do
    [ -n "$name" ] || continue
    has_parameters "$name" "$count"
    [ -z "$whole" ] || has_parameters "$name" "$whole" model.vision=whole
done <<<"$published"
for file in input/models/*.ini; do
    name=$(basename "$file" .ini)
    grep -q "^$name " <<<"$published" || not_ok "$name is a published model" "it is missing in the table of this test"
done
for file in input/*.ini; do
    case $file in
    input/sft.ini | input/llava.ini | input/vision-chat.ini | input/lora*.ini | input/chat.ini | input/eval.ini | input/rm.ini | input/dpo.ini | input/orpo.ini | input/simpo.ini | input/kto.ini | input/classify.ini | input/embed.ini | input/distill.ini | input/safe-dpo.ini | input/ppo.ini | input/grpo.ini | input/agent.ini | input/vision-grpo.ini | input/rloo.ini | input/reinforce.ini) continue ;; # their models are made by the demo and tools/chat.sh; docs/vision.md says which llava.ini takes
    esac
    ends "$file can be planned" 0 plan 8 "$file"
done

for model in qwen3_moe qwen2_moe gpt_oss_mxfp4 deepseek_v2 glm4_moe; do
    ends "input/lora-experts.ini takes $model" 0 run 0 ./dtrain --plan --ranks 8 input/lora-experts.ini model.path=tests/data/hf/$model
done

# Shape keys together with path: differences are reported, and the existing model is used.
make_data
train 1 base run.max_steps=1 checkpoint.export=hf
sed -e 's/^task = .*/task = eval/' -e "s|^train = .*|validation = $tmp/valid.h5|" -e "s|^model_type|path = $tmp/base/hf\nmodel_type|" \
    -e 's/^train_batch_size.*//' "$tmp/tiny.ini" >"$tmp/shape.ini"
ends "a model with the shape that its file names" 0 run 1 ./dtrain "$tmp/shape.ini"
expect "is not warned of" sh -c "! grep -q 'is ignored' '$out'"
ends "another model than the file names" 0 run 1 ./dtrain "$tmp/shape.ini" model.hidden_size=64
expect_text "is warned of, with both sizes" 'keys that differ from the model of path = .* are ignored: hidden_size = 64 .it has 32.'
mkdir "$tmp/elsewhere"
prints "before the download, the shape is planned for" 'the plan uses the shape in \[model\]' run 0 ./dtrain --plan "$tmp/shape.ini" model.path="$tmp/elsewhere/model"
sed -i '/^model_type/d' "$tmp/shape.ini"
run 1 ./dtrain "$tmp/shape.ini" model.hidden_size=64 model.vocab_size=300
expect_text "also by keys alone, in one line" 'are ignored: hidden_size = 64 .it has 32., vocab_size = 300 .it has 257.'

run 1 ./dtrain "$tmp/shape.ini" model.rope_theta=3 model.model_type=gpt2
expect_text "other keys and the type as well" 'are ignored: model_type = gpt2 .it has llama., rope_theta = 3 .it has 10000.'
run 1 ./dtrain "$tmp/shape.ini" model.rope_scaling='{"type": "linear", "factor": 2}' model.num_experts=4
expect_text "also keys that are no size, or of other models" 'are ignored: rope_scaling = ."type": "linear", "factor": 2. .it has default., num_experts = 4$'
ends "the load-balancing loss of a model without experts" 64 run 1 ./dtrain "$tmp/shape.ini" model.output_router_logits=true
run 1 ./dtrain --check "$tmp/shape.ini" model.path="$tmp/missing"
expect_text "a missing model: what is expected" 'missing: No such file or directory; expected a directory with config.json'
run 1 ./dtrain --check "$tmp/tiny.ini" data.train="$tmp/missing.h5" run.output_dir="$tmp/none"
expect_text "a missing dataset: what makes it" 'missing.h5: cannot be opened: .*; make datasets with dtrain-data'

# Without run.task.
./dtrain-data -q -o "$tmp/no_task_pairs.h5" input/pairs.jsonl
for i in $(seq 20); do echo '{"prompt": "a", "completion": "b"}'; done >"$tmp/no_task.jsonl"
./dtrain-data -q -o "$tmp/no_task.h5" "$tmp/no_task.jsonl"
sed '/^task/d' "$tmp/tiny.ini" >"$tmp/no_task.ini"
run 1 ./dtrain --check "$tmp/no_task.ini" data.train="$tmp/no_task_pairs.h5" run.output_dir="$tmp/none"
expect_text "pairs: the task is missing" 'expected tokens or sft for this task .pretrain, the default: .run. task is not set.'
run 1 ./dtrain --check "$tmp/no_task.ini" data.train="$tmp/no_task.h5" data.validation= run.output_dir="$tmp/none"
expect_text "chats: a warning" '.run. task is not set, so it is pretrain'
run 1 ./dtrain "$tmp/no_task.ini" run.task=sft data.train="$tmp/no_task.h5" data.validation= run.max_steps=1 run.output_dir="$tmp/chats"
run 1 ./dtrain "$tmp/no_task.ini" data.train="$tmp/no_task.h5" data.validation= run.max_steps=1 run.output_dir="$tmp/chats"
expect_text "an existing run: the missing key" 'run.task: sft -> pretrain; the configuration does not set run.task'
run 1 ./dtrain --check "$tmp/no_task.ini" run.task=sft data.train="$tmp/no_task.h5" data.validation= run.max_steps=0 run.epochs=0.3 run.output_dir="$tmp/few"
expect_text "few steps: which keys change it" 'gives only . optimizer step'

# One file for every task, with data of their own kind.
set -- run.output_dir="$tmp/ini" data.train="$tmp/train.h5" data.seq_len=32 run.max_steps=2
run 1 ./dtrain input/pretrain.ini "$@" data.validation="$tmp/valid.h5" model.max_position_embeddings=32 model.hidden_size=32 model.intermediate_size=64
expect_exit "input/pretrain.ini" 0
ends "input/eval.ini" 0 run 1 ./dtrain input/eval.ini model.path="$tmp/ini" data.validation="$tmp/valid.h5" data.seq_len=32
printf '{"prompt": "two and two is", "completion": " four"}\n{"prompt": "one and one is", "completion": " two"}\n' >"$tmp/chat.jsonl"
./dtrain-data -o "$tmp/sft.h5" "$tmp/chat.jsonl" >"$tmp/.data" 2>&1
ends "input/sft.ini" 0 run 1 ./dtrain input/sft.ini model.path="$tmp/ini" run.output_dir="$tmp/sft" data.train="$tmp/sft.h5" data.seq_len=32
ends "input/lora.ini" 0 run 2 ./dtrain input/lora.ini model.path="$tmp/ini" run.output_dir="$tmp/lora" data.train="$tmp/sft.h5" data.seq_len=32 batch.micro_batch_size=1
ends "input/lora-int8.ini" 0 run 3 ./dtrain input/lora-int8.ini model.path="$tmp/ini" run.output_dir="$tmp/lora-int8" data.train="$tmp/sft.h5" data.seq_len=32
printf '{"prompt": "two and two is", "chosen": " four", "rejected": " five"}\n{"prompt": "one and one is", "chosen": " two", "rejected": " one"}\n' >"$tmp/pairs.jsonl"
./dtrain-data -o "$tmp/pairs.h5" "$tmp/pairs.jsonl" >"$tmp/.data" 2>&1
run 1 ./dtrain input/rm.ini model.path="$tmp/ini" run.output_dir="$tmp/rm" data.train="$tmp/pairs.h5" data.validation="$tmp/pairs.h5" data.seq_len=32 \
    checkpoint.save_steps=0 batch.train_batch_size=4
expect_exit "input/rm.ini" 0
run 1 ./dtrain input/dpo.ini model.path="$tmp/ini" run.output_dir="$tmp/dpo" data.train="$tmp/pairs.h5" data.seq_len=32 checkpoint.save_steps=0 batch.train_batch_size=2
expect_exit "input/dpo.ini" 0
for name in orpo simpo; do
    ends "input/$name.ini" 0 run 1 ./dtrain input/$name.ini model.path="$tmp/ini" run.output_dir="$tmp/$name" data.train="$tmp/pairs.h5" data.seq_len=32 \
        checkpoint.save_steps=0 batch.train_batch_size=2
done
./dtrain-data --kind unpaired -o "$tmp/answers.h5" "$tmp/pairs.jsonl" >"$tmp/.data" 2>&1
run 1 ./dtrain input/kto.ini model.path="$tmp/ini" run.output_dir="$tmp/kto" data.train="$tmp/answers.h5" data.seq_len=32 checkpoint.save_steps=0 batch.train_batch_size=2
expect_exit "input/kto.ini" 0
for name in classify embed; do
    kind=labels records=classify/single; [ $name = classify ] || kind=texts records=embed/texts
    ./dtrain-data --kind $kind -o "$tmp/$name.h5" tests/data/$records.jsonl >"$tmp/.data" 2>&1
    ends "input/$name.ini" 0 run 1 ./dtrain input/$name.ini model.path="$tmp/ini" run.output_dir="$tmp/$name" data.train="$tmp/$name.h5" data.seq_len=32 \
        run.epochs=1 batch.train_batch_size=6 batch.micro_batch_size=2
done
run 1 ./dtrain input/distill.ini model.path="$tmp/ini" run.output_dir="$tmp/distill" data.train="$tmp/sft.h5" data.seq_len=32 checkpoint.save_steps=0 batch.train_batch_size=2 \
    distill.teacher_path="$tmp/sft"
expect_exit "input/distill.ini" 0
run 1 ./dtrain input/safe-dpo.ini model.path="$tmp/ini" run.output_dir="$tmp/safe" data.train="$tmp/pairs.h5" data.seq_len=32 checkpoint.save_steps=0 batch.train_batch_size=2 \
    batch.micro_batch_size=2 dpo.helpful_path="$tmp/rm" dpo.harmless_path="$tmp/rm"
expect_exit "input/safe-dpo.ini" 0
run 2 ./dtrain input/lora-dpo.ini model.path="$tmp/ini" run.output_dir="$tmp/lora-dpo" lora.path="$tmp/lora-int8/adapter" data.train="$tmp/pairs.h5" data.seq_len=32
expect_exit "input/lora-dpo.ini" 0
printf '{"prompt": "two and two is", "answer": "four"}\n{"prompt": "one and one is", "answer": "two"}\n' >"$tmp/prompts.jsonl"
./dtrain-data -o "$tmp/prompts.h5" "$tmp/prompts.jsonl" >"$tmp/.data" 2>&1
run 1 ./dtrain input/ppo.ini model.path="$tmp/ini" run.output_dir="$tmp/ppo" data.train="$tmp/prompts.h5" data.seq_len=32 ppo.reward_path="$tmp/rm" ppo.response_length=8 \
    ppo.total_episodes=8 checkpoint.save_steps=0 batch.train_batch_size=8
expect_exit "input/ppo.ini" 0
run 1 ./dtrain input/grpo.ini model.path="$tmp/ini" run.output_dir="$tmp/grpo" data.train="$tmp/prompts.h5" data.seq_len=32 grpo.max_completion_length=8 \
    checkpoint.save_steps=0 batch.train_batch_size=8
expect_exit "input/grpo.ini" 0
for name in rloo reinforce agent; do
    [ "$name" != agent ] || command -v python3 >/dev/null || { skip "input/agent.ini" "no python3"; continue; }
    ends "input/$name.ini" 0 run 1 ./dtrain input/$name.ini model.path="$tmp/ini" run.output_dir="$tmp/$name" data.train="$tmp/prompts.h5" data.seq_len=32 \
        grpo.max_completion_length=8 checkpoint.save_steps=0 batch.train_batch_size=8
done

# Images: the recipes in the heads of their files.
hf=tests/data/vision/hf
printf '{"prompt": "# What is here? ", "completion": "a cat", "image": "%s/tests/data/vision_data/wide.ppm"}\n' "$PWD" "$PWD" >"$tmp/seen.jsonl"
ends "a dataset for input/vision.ini" 0 run 0 ./dtrain-data --images input --image-token '#' --image-tokens 16 -o "$tmp/seen.h5" "$tmp/seen.jsonl"
run 2 ./dtrain input/vision.ini run.output_dir="$tmp/vision" data.train="$tmp/seen.h5" run.max_steps=2 batch.train_batch_size=2 batch.micro_batch_size=1
expect_exit "input/vision.ini" 0
printf '[{"image": "wide.ppm", "conversations": [{"from": "human", "value": "What is it?\\n<image>"}, {"from": "gpt", "value": "a cat"}]}]\n' >"$tmp/captions.json"
run 0 ./dtrain-data --images $hf/siglip_vision --tokenizer $hf/siglip_qwen2_text --image-folder tests/data/vision_data --captions -o "$tmp/captions.h5" "$tmp/captions.json"
expect_exit "a dataset for input/llava.ini" 0
set -- data.seq_len=64 batch.train_batch_size=2 batch.micro_batch_size=1 run.epochs=2 vision.feature_cache="$tmp/features"
run 2 ./dtrain input/llava.ini run.output_dir="$tmp/align" model.path=$hf/siglip_qwen2_text vision.path=$hf/siglip_vision data.train="$tmp/captions.h5" "$@"
expect_exit "input/llava.ini" 0
run 2 ./dtrain input/llava.ini run.output_dir="$tmp/tuned" model.path="$tmp/align/hf" vision.path= data.train="$tmp/captions.h5" vision.train=projector,llm "$@"
expect_exit "input/llava.ini for fine-tuning" 0
while read -r model records; do
    ends "a dataset of ${model##*/}" 0 run 0 ./dtrain-data --force --images "tests/data/vision/$model" --image-folder tests/data/image/files --tokenizer "tests/data/vision/$model" -o "$tmp/seen.h5" "tests/data/vision/$records"
    ends "input/vision-chat.ini takes ${model##*/}" 0 run 2 ./dtrain input/vision-chat.ini model.path="tests/data/vision/$model" run.output_dir="$tmp/chat-${model##*/}" data.train="$tmp/seen.h5" run.max_steps=1
done <<'END'
grids/qwen2_5_vl grids/chats.jsonl
grids/qwen3_vl grids/chats.jsonl
hf/gemma3 gemma3_chats.jsonl
END
qwen=tests/data/vision/grids/qwen3_vl
python3 tests/vision_records.py prompts $qwen >"$tmp/asked.jsonl"
ends "prompts with images" 0 run 0 ./dtrain-data --kind prompts --images $qwen --tokenizer $qwen -o "$tmp/asked.h5" "$tmp/asked.jsonl"
ends "input/vision-grpo.ini" 0 run 1 ./dtrain input/vision-grpo.ini model.path=$qwen run.output_dir="$tmp/vision-grpo" data.train="$tmp/asked.h5" data.seq_len=128 \
    vision.feature_cache="$tmp/features" run.max_steps=1 batch.train_batch_size=8 grpo.max_completion_length=8

# Commands in the heads of files name templates that exist.
for name in $(sed -n 's/^#.* --template \([^ ]*\) .*/\1/p' input/*.ini input/models/*.ini | grep -v '^auto$' | sort -u); do
    expect "the template $name" grep -q "^  $name  " <(./dtrain-data --help)
done
e2e_done

#!/bin/bash
# e2e_int8.sh - adapters on a model whose matrices are stored as int8: which are and as what numbers, training as on the matrices of these numbers, the same
# bits on any number of ranks, at any stage and offload, resumed; checkpoints, models that are written, references and what cannot be.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
llama=tests/data/dpo/start gpt2=tests/data/lora/gpt2
data -o "$tmp/sft.h5" tests/data/lora/sft.jsonl
modules='lora.target_modules=.*(proj|attn|fc|embed_tokens)'
lora() { # NP DIR MODEL ARGS...
    local np=$1 dir=$2 model=$3
    shift 3
    run "$np" ./dtrain /dev/stdin run.task=sft run.output_dir="$tmp/$dir" run.max_steps=4 run.threads=1 run.reproducible=true model.path="$model" \
        data.train="$tmp/sft.h5" data.seq_len=64 data.shuffle=false batch.train_batch_size=12 batch.micro_batch_size=1 optimizer.lr=1e-2 \
        scheduler.type=constant log.report_to=jsonl checkpoint.save_steps=0 lora.r=4 ${targets-$modules} lora.dropout=0.2 "$@"
}
int8() { lora "$@" lora.base_quantization=int8; }
same_adapter() { cmp "$tmp/$1/adapter/adapter_model.safetensors" "$tmp/$2/adapter/adapter_model.safetensors"; }

# ---- the numbers: adapters that have not moved add nothing, so the model that is written is the base ------------------------------------------
for family in llama gpt2; do
    model=${!family}
    int8 2 "still$family" "$model" optimizer.lr=0 run.max_steps=1
    run 2 ./dtrain-convert "$(newest "still$family")" "$tmp/numbers$family" --dtype fp32
    expect "$family: the matrices of blocks, and they alone, are rounded rows" python3 tests/like_int8.py "$model" "$tmp/numbers$family"
    int8 1 "int8$family" "$model"
    lora 1 "float$family" "$tmp/numbers$family"
done
expect "llama: adapters as on the matrix of the numbers, to the bit" same_adapter int8llama floatllama
# GPT-2's own matrices are [in, out]: a product of the other layout may add in another order, which 1e-6 covers in fp32.
expect "gpt2: the same losses" close_losses int8gpt2 floatgpt2 1e-6
for name in bf16 fp32; do
    int8 2 "int8$name" $llama precision.dtype=$name run.reproducible=false zero.stage=2
    lora 2 "float$name" "$tmp/numbersllama" precision.dtype=$name run.reproducible=false zero.stage=2
    expect "in $name, without run.reproducible: the same adapters" same_adapter "int8$name" "float$name"
done

# ---- layouts ----------------------------------------------------------------------------------------------------------------------------------
nvme="zero.nvme_path=$tmp"
while read -r np stage optimizer param more; do
    DTRAIN_FAKE_NODES=$((np / 2)) int8 "$np" "on$np$param" $llama zero.stage="$stage" zero.offload_optimizer="$optimizer" zero.offload_param="$param" $more
    expect "the same bits on $np ranks at stage $stage, offload $optimizer and $param${more:+, $more}" same_model "$(newest int8llama)" "$(newest "on$np$param")"
    expect "and planned is allocated" as_planned
done <<LAYOUTS
2 1 cpu none
3 2 none none checkpoint.async=true
4 3 none none zero.allgather_bucket_size=200
2 3 cpu cpu model.activation_checkpointing=block
4 3 none cpu zero.shard_group=node
3 3 nvme nvme $nvme
LAYOUTS
make_task sft data.train="$tmp/sft.h5" batch.train_batch_size=12 batch.micro_batch_size=1 run.max_steps=1 lora.r=4 lora.base_quantization=int8
train 3 planned zero.stage=3
expect "--plan says what is allocated" as_plan_says 3 3
run 0 ./dtrain --plan --ranks 8 --gpu h100 "$tmp/tiny.ini" precision.dtype=bf16 zero.stage=3
expect_exit "and how long a step takes on a GPU" 0
int8 3 turned $gpt2 zero.stage=3 zero.offload_param=cpu
expect "the same bits of GPT-2 on three ranks" same_model "$(newest int8gpt2)" "$(newest turned)"
int8 2 halves $llama run.max_steps=2
lora 3 halves $llama zero.stage=2 checkpoint.resume=auto
expect_text "resumed without the key: said by name" "lora.base_quantization: int8 -> none"
expect_exit "and refused" 64
int8 3 halves $llama zero.stage=3 checkpoint.resume=auto
expect "resumed on other ranks at another stage: the same bits" same_model "$(newest int8llama)" "$(newest halves)"
half=$tmp/halves/checkpoints/step-00000002.h5 q=/model/model.layers.1.self_attn.q_proj.weight
for name in $q ${q}_scale /model/model.layers.0.mlp.down_proj.weight /model/lm_head.weight; do
    expect "$name stays as it is" h5diff "$half" "$(newest halves)" "$name" "$name"
done
expect "a checkpoint has bytes, and a float a row" sh -c "h5dump -H -d $q '$half' | grep -q H5T_STD_I8LE && h5dump -H -d ${q}_scale '$half' | grep -q H5T_IEEE_F32LE"

int8 2 alone $llama run.max_steps=2 checkpoint.save=trainable checkpoint.async=true
expect "checkpoint.save = trainable leaves codes and scales out" sh -c "h5ls -r '$(newest alone)' | grep -q lora_A && ! h5ls -r '$(newest alone)' | grep -q 'q_proj.weight'"
run 0 ./dtrain --check "$tmp/alone/config.ini" run.max_steps=4
expect_exit "--check finds the base as it was" 0
int8 3 alone $llama checkpoint.save=trainable zero.stage=3 checkpoint.resume=auto
expect "and goes on beside the base, rounded again" same_adapter int8llama alone

# ---- from checkpoints, to directories ---------------------------------------------------------------------------------------------------------
for family in llama gpt2; do
    run 1 ./dtrain-convert "${!family}" "$tmp/$family.h5"
    int8 3 "from$family" "$tmp/$family.h5" zero.stage=3
    expect "$family: from a checkpoint of floats" same_model "$(newest "int8$family")" "$(newest "from$family")"
done
run 2 ./dtrain-convert "$(newest int8llama)" "$tmp/merged" --dtype fp32
counted() { sed -n 's/.*: \([0-9]*\) parameters from .*/\1/p' "$out"; }
codes=$(counted)
run 1 ./dtrain-convert --adapter "$tmp/int8llama/adapter" "$tmp/numbersllama" "$tmp/merged2" --dtype fp32
expect "scales are no parameters of what is written" [ "$codes" -gt 0 -a "$codes" = "$(counted)" ]
expect "a model is written with its adapters on the numbers" cmp "$tmp/merged/model.safetensors" "$tmp/merged2/model.safetensors"
sample() { run "$1" ./dtrain-generate "$tmp/$2" --tokenizer bytes --prompt "the cat" --max-new-tokens 12 --greedy && sed '/^dtrain-generate/d' "$out" >"$tmp/$2.txt"; }
sample 1 int8llama
sample 2 merged
sample 2 alone
for from in int8llama alone; do expect "dtrain-generate says from the checkpoint ($from) what it says from that" cmp "$tmp/$from.txt" "$tmp/merged.txt"; done
run 0 ./dtrain-info "$(newest int8llama)"
expect_exit "dtrain-info takes it" 0

# ---- tasks ------------------------------------------------------------------------------------------------------------------------------------
data -o "$tmp/pairs.h5" tests/data/rm/pairs.jsonl
pairs="run.task=dpo data.train=$tmp/pairs.h5 lora.dropout=0"
int8 2 dpo $llama $pairs zero.stage=3
lora 1 dpofloat "$tmp/numbersllama" $pairs
expect "dpo, the reference is the model without adapters: as on the numbers" same_adapter dpo dpofloat
lora 2 on "$(newest int8llama)" $pairs zero.stage=3
expect "dpo goes on from the checkpoint, whose base says what it is; planned is allocated" as_planned
targets= int8 1 onpeft $llama $pairs lora.path="$tmp/int8llama/adapter"
expect "and from the adapter alone, with a reference of int8, too: the same bits" same_adapter on onpeft
targets=lora.target_modules=down_proj int8 2 whole $llama $pairs lora.modules_to_save=layers.0.self_attn.k_proj
expect "a matrix that is trained, and those of one product with it, are floats in the reference, too: the first margin is 0" \
    [ "$(number whole dpo/rewards/margins | head -1)" = 0 ]
run 1 ./dtrain-convert "$(newest whole)" "$tmp/whole_hf" --dtype fp32
run 1 ./dtrain-convert "$tmp/whole_hf" "$tmp/whole.h5"
expect "it is not rounded when it is written" h5diff "$(newest whole)" "$tmp/whole.h5" /model/model.layers.0.self_attn.k_proj.weight /model/model.layers.0.self_attn.k_proj.weight
int8 2 rm $llama $pairs run.task=rm
expect "a reward model, planned is allocated" as_planned
data --kind prompts -o "$tmp/prompts.h5" tests/data/rm/pairs.jsonl
rollouts="run.task=grpo data.train=$tmp/prompts.h5 batch.train_batch_size=8 run.max_steps=2 lora.dropout=0 grpo.num_generations=4
    grpo.max_completion_length=6 grpo.beta=0.1 grpo.reward_funcs=length"
int8 2 grpo $llama $rollouts zero.stage=3
expect "grpo, planned is allocated" as_planned
lora 1 grpofloat "$tmp/numbersllama" $rollouts
expect "grpo: rollouts and steps as on the numbers" same_adapter grpo grpofloat

# ---- what cannot be ---------------------------------------------------------------------------------------------------------------------------
int8 1 refused $llama lora.r=0 lora.target_modules= lora.dropout=0
expect_exit "nothing is frozen: refused" 64
expect_text "by name" "lora.base_quantization: int8 is for weights that are not trained, beside adapters"
int8 1 refused $llama lora.modules_to_save=k_proj,o_proj,mlp lora.target_modules=q_proj
expect_exit "all is trained whole: refused" 64
expect_text "by name" "lora.base_quantization: no linear layer of this model's blocks is left as it is"
int8 1 refused $llama $rollouts run.task=ppo ppo.response_length=6 ppo.reward_funcs=length ppo.value_path="$(newest rm)"
expect_exit "a critic of int8 is refused" 65
expect_text "by name" "stored as int8 .lora.base_quantization., and the critic is trained whole"
lora 1 refused "$(newest int8llama)" lora.base_quantization=none
expect_text "int8 stays int8" "lora.base_quantization: the adapter of .* has int8; leave the key out"
mkdir "$tmp/nan"
cp $llama/config.json "$tmp/nan"
python3 - $llama/model.safetensors "$tmp/nan/model.safetensors" <<'PY'
import json, struct, sys
raw = bytearray(open(sys.argv[1], "rb").read())
n, = struct.unpack("<Q", raw[:8])
t = json.loads(raw[8:8 + n])["model.layers.1.mlp.up_proj.weight"]
at = 8 + n + t["data_offsets"][0] + 4 * (3 * t["shape"][1] + 1) # row 3
raw[at:at + 4] = struct.pack("<f", float("nan"))
open(sys.argv[2], "wb").write(raw)
PY
int8 2 refused "$tmp/nan" zero.stage=3
expect_exit "a row without a scale is refused" 65
expect_text "by name" "tensor \`model.layers.1.mlp.up_proj.weight\`: row 3 has numbers that are not finite"
e2e_done

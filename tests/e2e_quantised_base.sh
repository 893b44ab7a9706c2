#!/bin/bash
# e2e_quantised_base.sh - adapters on a model whose matrices are stored as int8 or nf4: which matrices are quantised and to which values.
# Training matches training on the dequantised matrices. Bits do not depend on ranks, stage, offload or resuming. Also: checkpoints,
# exported models, references, and unsupported cases. Behaviour that both formats share is tested with one of them.
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
nf4() { lora "$@" lora.base_quantization=nf4; }
same_adapter() { cmp "$tmp/$1/adapter/adapter_model.safetensors" "$tmp/$2/adapter/adapter_model.safetensors"; }

# ---- the numbers: adapters that have not moved add nothing, so the model that is written is the base ------------------------------------------
for base in int8 nf4; do
    for family in llama gpt2; do
        model=${!family}
        $base 2 "still$base$family" "$model" optimizer.lr=0 run.max_steps=1
        run 2 ./dtrain-convert "$(newest "still$base$family")" "$tmp/numbers$base$family" --dtype fp32
        expect "$base $family: the matrices of blocks, and they alone, are rounded" python3 tests/like_base.py "$base" "$model" "$tmp/numbers$base$family"
        $base 1 "$base$family" "$model"
        lora 1 "float$base$family" "$tmp/numbers$base$family"
    done
    expect "$base llama: adapters as on the matrix of the numbers, to the bit" same_adapter "${base}llama" "float${base}llama"
    # GPT-2's own matrices are [in, out]: a product of the other layout may add in another order, which 1e-6 covers in fp32.
    expect "$base gpt2: the same losses" close_losses "${base}gpt2" "float${base}gpt2" 1e-6
    for name in bf16 fp32; do
        $base 2 "$base$name" $llama precision.dtype=$name run.reproducible=false zero.stage=2
        lora 2 "float$base$name" "$tmp/numbers${base}llama" precision.dtype=$name run.reproducible=false zero.stage=2
        expect "$base in $name, without run.reproducible: the same adapters" same_adapter "$base$name" "float$base$name"
    done
done

# ---- layouts ----------------------------------------------------------------------------------------------------------------------------------
nvme="zero.nvme_path=$tmp"
while read -r base np stage optimizer param more; do
    DTRAIN_FAKE_NODES=$((np / 2)) $base "$np" "on$base$np$param" $llama zero.stage="$stage" zero.offload_optimizer="$optimizer" zero.offload_param="$param" $more
    expect "$base: the same bits on $np ranks at stage $stage, offload $optimizer and $param${more:+, $more}" \
        same_model "$(newest "${base}llama")" "$(newest "on$base$np$param")"
    expect "planned memory is allocated" as_planned
done <<LAYOUTS
nf4 2 1 cpu none
int8 3 2 none none checkpoint.async=true
nf4 4 3 none none zero.allgather_bucket_size=200
int8 4 3 none none zero.allgather_bucket_size=200
nf4 2 3 cpu cpu model.activation_checkpointing=block
int8 2 3 cpu cpu model.activation_checkpointing=block
nf4 4 3 none cpu zero.shard_group=node
nf4 3 3 nvme nvme $nvme
LAYOUTS
for base in int8 nf4; do
    make_task sft data.train="$tmp/sft.h5" batch.train_batch_size=12 batch.micro_batch_size=1 run.max_steps=1 lora.r=4 lora.base_quantization=$base
    train 3 "planned$base" zero.stage=3
    expect "$base: --plan says what is allocated" as_plan_says 3 3
    $base 3 "turned$base" $gpt2 zero.stage=3 zero.offload_param=cpu
    expect "$base: the same bits of GPT-2 on three ranks" same_model "$(newest "${base}gpt2")" "$(newest "turned$base")"
done
ends "and how long a step takes on a GPU" 0 run 0 ./dtrain --plan --ranks 8 --gpu h100 "$tmp/tiny.ini" precision.dtype=bf16 zero.stage=3

# ---- checkpoints ------------------------------------------------------------------------------------------------------------------------------
in_file() { h5dump -H -d "$1" "$half" | grep -q "$2"; }
other=none
for base in int8 nf4; do
    $base 2 "halves$base" $llama run.max_steps=2
    lora 3 "halves$base" $llama zero.stage=2 checkpoint.resume=auto lora.base_quantization=$other
    expect_text "resumed with another key: said by name" "lora.base_quantization: $base -> $other"
    expect_exit "the settings are refused" 64
    $base 3 "halves$base" $llama zero.stage=3 checkpoint.resume=auto
    expect "$base: resumed on other ranks at another stage: the same bits" same_model "$(newest "${base}llama")" "$(newest "halves$base")"
    half=$tmp/halves$base/checkpoints/step-00000002.h5 q=/model/model.layers.1.self_attn.q_proj.weight
    for name in $q ${q}_scale /model/model.layers.0.mlp.down_proj.weight /model/lm_head.weight; do
        expect "$name stays as it is" h5diff "$half" "$(newest "halves$base")" "$name" "$name"
    done
    other=$base
done
expect "a checkpoint of nf4 has two weights in a byte" in_file $q "( 128 )"
expect "a byte for 64 of them" in_file ${q}_blocks "H5T_STD_U8LE"
expect "and pairs of floats" in_file ${q}_scale "H5T_IEEE_F32LE"
half=$tmp/halvesint8/checkpoints/step-00000002.h5
expect "of int8 a byte a weight" in_file $q H5T_STD_I8LE
expect "and a float a row" in_file ${q}_scale H5T_IEEE_F32LE
for base in int8 nf4; do
    $base 2 "alone$base" $llama run.max_steps=2 checkpoint.save=trainable checkpoint.async=true
    expect "$base: checkpoint.save = trainable leaves the base out" sh -c "h5ls -r '$(newest "alone$base")' | grep -q lora_A && ! h5ls -r '$(newest "alone$base")' | grep -q 'q_proj.weight'"
    ends "--check finds the base as it was" 0 run 0 ./dtrain --check "$tmp/alone$base/config.ini" run.max_steps=4
    $base 3 "alone$base" $llama checkpoint.save=trainable zero.stage=3 checkpoint.resume=auto
    expect "a run resumes with the base quantised again" same_adapter "${base}llama" "alone$base"
done
run 0 ./dtrain --check "$tmp/aloneint8/config.ini" run.max_steps=6 lora.base_quantization=nf4 checkpoint.allow_changes=lora.base_quantization
expect_exit "another quantisation of the base is refused in spite of allow_changes" 64
expect_text "by name" "lora.base_quantization: nf4, but .*/step-00000004.h5 does not contain the base .checkpoint.save = trainable., and the run stored the base as int8; expected int8, or checkpoint.save = all"

# ---- from checkpoints, to directories ---------------------------------------------------------------------------------------------------------
for family in llama gpt2; do
    run 1 ./dtrain-convert "${!family}" "$tmp/$family.h5"
    for base in int8 nf4; do
        $base 3 "from$base$family" "$tmp/$family.h5" zero.stage=3
        expect "$base $family: from a checkpoint of floats" same_model "$(newest "$base$family")" "$(newest "from$base$family")"
    done
done
tiny="model.model_type=llama model.hidden_size=32 model.intermediate_size=88 model.num_hidden_layers=2 model.num_attention_heads=4 model.num_key_value_heads=2 model.vocab_size=258"
lora 1 drawn "" $tiny lora.r=0 lora.target_modules= lora.dropout=0 optimizer.lr=0 run.max_steps=1
for base in int8 nf4; do
    $base 3 "drawn$base" "" $tiny zero.stage=3
    $base 1 "read$base" "$(newest drawn)"
    expect "$base: what is drawn is what is drawn as floats" same_adapter "drawn$base" "read$base"
done
counted() { sed -n 's/.*: \([0-9]*\) parameters from .*/\1/p' "$out"; }
sample() { run "$1" ./dtrain-generate "$tmp/$2" --tokenizer bytes --prompt "the cat" --max-new-tokens 12 --greedy && sed '/^dtrain-generate/d' "$out" >"$tmp/$2.txt"; }
for base in int8 nf4; do
    run 2 ./dtrain-convert "$(newest "${base}llama")" "$tmp/merged$base" --dtype fp32
    codes=$(counted)
    run 1 ./dtrain-convert --adapter "$tmp/${base}llama/adapter" "$tmp/numbers${base}llama" "$tmp/merged2$base" --dtype fp32
    expect "$base: what goes with codes is no parameter of what is written" [ "$codes" -gt 0 -a "$codes" = "$(counted)" ]
    expect "$base: a model is written with its adapters on the numbers" cmp "$tmp/merged$base/model.safetensors" "$tmp/merged2$base/model.safetensors"
    sample 1 "${base}llama"
    sample 2 "merged$base"
    sample 2 "alone$base"
    for from in ${base}llama alone$base; do
        expect "dtrain-generate says from the checkpoint ($from) what it says from that" cmp "$tmp/$from.txt" "$tmp/merged$base.txt"
    done
    prints "dtrain-info counts weights" "258, 16088 parameters" run 0 ./dtrain-info "$(newest "${base}llama")"
done

# ---- tasks ------------------------------------------------------------------------------------------------------------------------------------
data -o "$tmp/pairs.h5" tests/data/rm/pairs.jsonl
pairs="run.task=dpo data.train=$tmp/pairs.h5 lora.dropout=0"
for base in int8 nf4; do
    $base 2 "dpo$base" $llama $pairs zero.stage=3
    lora 1 "dpofloat$base" "$tmp/numbers${base}llama" $pairs
    expect "$base dpo, the reference is the model without adapters: as on the numbers" same_adapter "dpo$base" "dpofloat$base"
    lora 2 "on$base" "$(newest "${base}llama")" $pairs zero.stage=3
    expect "dpo continues from a checkpoint with its quantised base; planned memory is allocated" as_planned
    targets= $base 1 "onpeft$base" $llama $pairs lora.path="$tmp/${base}llama/adapter"
    expect "dpo from only the adapter, with a reference of $base: the same bits" same_adapter "on$base" "onpeft$base"
done
targets=lora.target_modules=down_proj nf4 2 whole $llama $pairs lora.modules_to_save=layers.0.self_attn.k_proj
expect "a matrix that is trained, and those of one product with it, are floats in the reference, too: the first margin is 0" \
    [ "$(number whole dpo/rewards/margins | head -1)" = 0 ]
run 1 ./dtrain-convert "$(newest whole)" "$tmp/whole_hf" --dtype fp32
run 1 ./dtrain-convert "$tmp/whole_hf" "$tmp/whole.h5"
expect "full-precision weights are not rounded in the file" h5diff "$(newest whole)" "$tmp/whole.h5" /model/model.layers.0.self_attn.k_proj.weight /model/model.layers.0.self_attn.k_proj.weight
int8 2 rm $llama $pairs run.task=rm
expect "a reward model, planned is allocated" as_planned
data --kind prompts -o "$tmp/prompts.h5" tests/data/rm/pairs.jsonl
rollouts="run.task=grpo data.train=$tmp/prompts.h5 batch.train_batch_size=8 run.max_steps=2 lora.dropout=0 grpo.num_generations=4
    grpo.max_completion_length=6 grpo.beta=0.1 grpo.reward_funcs=length"
nf4 2 grpo $llama $rollouts zero.stage=3
expect "grpo, planned is allocated" as_planned
lora 1 grpofloat "$tmp/numbersnf4llama" $rollouts
expect "grpo: rollouts and steps as on the numbers" same_adapter grpo grpofloat

# ---- what cannot be ---------------------------------------------------------------------------------------------------------------------------
ends "nothing is frozen: refused" 64 nf4 1 refused $llama lora.r=0 lora.target_modules= lora.dropout=0
expect_text "by name" "lora.base_quantization: nf4 needs lora.r, because it stores frozen weights"
ends_saying "int8 weights with outlier columns in a higher precision: refused by name" 64 "lora.llm_int8_threshold: remove it: weights in int8 are dequantised" int8 1 refused $llama lora.llm_int8_threshold=6
sed -E 's/("vocab_size":) .*/\1 257/; s/("hidden_size":) .*,/\1 32,/; s/("num_(attention|key_value)_heads":) .*,/\1 4,/; s/("head_dim":) .*,/\1 8,/
    s/("intermediate_size":) .*,/\1 33,/' tests/data/hf/llama/config.json >"$tmp/odd.json"
nf4 1 refused "" model.config="$tmp/odd.json"
expect_text "a later matrix that does not fit is refused" "lora.base_quantization: nf4 needs blocks of 64 weights, but model.layers.0.mlp.gate_proj.weight has 1056"
expect "no consequential error is reported" [ "$(grep -c 'error: ' "$out")" = 1 ]
ends "a critic of int8 is refused" 65 int8 1 refused $llama $rollouts run.task=ppo ppo.response_length=6 ppo.reward_funcs=length ppo.value_path="$(newest rm)"
expect_text "by name" "expected floating-point weights, because the critic trains all of them, found int8 .lora.base_quantization."
prints "int8 stays int8" "lora.base_quantization: the base of .* is stored as int8; leave the key out" lora 1 refused "$(newest int8llama)" lora.base_quantization=nf4
mkdir "$tmp/nan" && cp $llama/config.json $llama/model.safetensors "$tmp/nan"
python3 tests/poison.py "$tmp/nan/model.safetensors" model.layers.1.mlp.up_proj.weight $((3 * 16 + 1)) nan # in row 3
for base in int8 nf4; do
    $base 2 refused "$tmp/nan" zero.stage=3
    expect_exit "a number that is none is refused" 65
    expect_text "by name" "nan/model.safetensors: tensor \`model.layers.1.mlp.up_proj.weight\`: row 3 has non-finite values, which cannot be stored as $base"
done
e2e_done

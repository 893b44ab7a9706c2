#!/bin/bash
# e2e_sft.sh - options of fine-tuning. The loss of dynamic fine-tuning, training on prompts and NEFTune match TRL's SFTTrainer, on any number of ranks
# and at any stage, packed or not. Noise depends on seed, step, sample and token alone.
# Also: resuming; validation without noise; adapters; meshes; 16 bits; images; learning; errors.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
. "$(dirname "$0")/mesh_common.sh"
data -o "$tmp/pairs.h5" tests/data/sft/pairs.jsonl
data --tokenizer tests/data/rm/letters -o "$tmp/more.h5" tests/data/sft/more.jsonl
data --tokenizer tests/data/rm/letters --mask full -o "$tmp/full.h5" tests/data/sft/more.jsonl
make_task sft run.max_steps=6 data.train="$tmp/pairs.h5" data.shuffle=false batch.train_batch_size=4
# The losses of dft are small numbers: nothing cancels in them.
[ "${DTRAIN_DEVICE:-cpu}" = cuda ] || like_trl() { python3 tests/like_trl.py "$tmp/$1" "$2" "$3" 2e-5 >"$out" 2>&1; }
against_trl sft 16 1 "1 2 3 1" "3 2 2 1" "6 2 1 2" "9 2 3 1" "8 4 0 1" "2 4 2 1"

# Bit for bit in reproducible mode, with all options.
keys=(sft.loss_type=dft sft.train_on_inputs=true model.neftune_noise_alpha=5 data.validation="$tmp/more.h5" data.validation_steps=2)
bits 1 ref "${keys[@]}"
for layout in "2 2" "3 3 zero.offload_optimizer=cpu zero.offload_param=cpu" "2 1 model.activation_checkpointing=block" \
    "1 0 model.activation_checkpointing=selective data.prefetch=0"; do
    set -- $layout
    bits "$1" "same$1$2" "${keys[@]}" zero.stage="$2" "${@:3}"
    expect "the same bits on $1 ranks at stage $2${3:+, ${*:3}}" same_model "$(newest ref)" "$(newest "same$1$2")"
    is "the same validations" "$(number ref validation_loss)" "$(number "same$1$2" validation_loss)"
    rm -rf "$tmp/bits$1$2"
done
bits 2 halves "${keys[@]}" run.max_steps=2
bits 3 halves "${keys[@]}" zero.stage=2
expect "resumed on other ranks: the same bits" same_model "$(newest ref)" "$(newest halves)"
bits 1 full "${keys[@]}" data.train="$tmp/full.h5" sft.train_on_inputs=false
expect "train_on_inputs is a dataset made with --mask full" same_model "$(newest ref)" "$(newest full)"
bits 1 seeds "${keys[@]}" run.seed=43
expect "another seed, other noise" sh -c '! h5diff -q "$1" "$2" /model /model' sh "$(newest ref)" "$(newest seeds)"
bits 1 still sft.loss_type=dft data.validation="$tmp/more.h5" optimizer.lr=0 run.max_steps=1
bits 1 noisy sft.loss_type=dft data.validation="$tmp/more.h5" optimizer.lr=0 run.max_steps=1 model.neftune_noise_alpha=50
is "no noise in validations" "$(number noisy validation_loss)" "$(number still validation_loss)"
expect "noise in training" sh -c '[ "$1" != "$2" ]' sh "$(number noisy loss | head -1)" "$(number still loss | head -1)"

# Adapters; a task with another model; 16 bits.
for layout in "1 0" "2 3"; do
    set -- $layout
    bits "$1" "lora$1" "${keys[@]}" lora.r=4 lora.target_modules=q_proj,v_proj,up_proj,embed_tokens zero.stage="$2"
done
expect "adapters: the same bits on 2 ranks" same_model "$(newest lora1)" "$(newest lora2)"
data --tokenizer tests/data/rm/letters -o "$tmp/ranked.h5" tests/data/rm/more.jsonl
for layout in "1 0" "2 3"; do
    set -- $layout
    bits "$1" "dpo$1" run.task=dpo data.train="$tmp/ranked.h5" model.neftune_noise_alpha=5 zero.stage="$2"
done
expect "dpo with noise: the same bits on 2 ranks" same_model "$(newest dpo1)" "$(newest dpo2)"
train 1 fp32 "${keys[@]}"
train 2 bf16 "${keys[@]}" precision.dtype=bf16 zero.stage=2
expect "bf16: losses within its rounding" close_losses fp32 bf16 5e-2
expect "planned is allocated" as_planned

mesh() { # KEY ARGS...: 2 ranks on this axis
    rm -rf "$tmp/one" "$tmp/mesh"
    train 1 one "${keys[@]}" "${@:2}"
    train 2 mesh "${keys[@]}" "$1=2" zero.stage=2 comm.check=true "${@:2}"
    same "$*" mesh
}
mesh mesh.cp
mesh mesh.cp data.packing=bfd
mesh mesh.tp model.path=tests/data/hf/qwen2 data.train="$tmp/more.h5" data.seq_len=28

# Dynamic fine-tuning follows ordinary fine-tuning: it hardly learns improbable targets.
learn=(data.validation="$tmp/pairs.h5" batch.micro_batch_size=1 log.report_to="stdout, jsonl")
train 2 first "${learn[@]}" run.max_steps=100 model.neftune_noise_alpha=5
train 2 learns "${learn[@]}" run.max_steps=40 optimizer.lr=3e-3 sft.loss_type=dft model.path="$tmp/first"
expect "targets become probable" above learns validation_accuracy 0.9
expect "a validation has its perplexity" grep -q '"validation_loss".*"perplexity"' "$tmp/learns/metrics.jsonl"
expect "the loss of dft is below -log p" awk -v a="$(number learns loss | tail -1)" -v b="$(number learns sft/nll | tail -1)" 'BEGIN { exit !(a > 0 && a < b) }'

# Chunks of logits: the activations of a long row do not depend on the vocabulary.
activations() {
    ./dtrain --plan --ranks 8 --device-memory 140G input/models/llama-3.1-8b.ini run.device=cuda data.seq_len=131072 batch.micro_batch_size=1 \
        batch.gradient_accumulation_steps=1 model.activation_checkpointing=block model.vocab_size="$1" 2>/dev/null | awk '$1 == 2 { print $5; exit }'
}
expect "a plan has activations" [ -n "$(activations 32)" ]
is "a long row's logits do not exist at once" "$(activations 128256)" "$(activations 32)"

ends "resumed with other targets" 64 train 2 learns sft.loss_type=dft run.max_steps=61 sft.train_on_inputs=true
expect_text "is refused by key" 'sft.train_on_inputs: false -> true'
data --kind prompts -o "$tmp/prompts.h5" tests/data/sft/pairs.jsonl
ends "noise with rollouts" 64 train 1 grpo run.task=grpo data.train="$tmp/prompts.h5" model.neftune_noise_alpha=5 grpo.reward_funcs=length grpo.max_completion_length=8 grpo.num_generations=2
expect_text "is refused by key" 'neftune_noise_alpha: expected 0 with run.task = grpo, .*; found 5$'
ends "an unknown loss" 64 train 1 loss sft.loss_type=chunked_nll
expect_text "names the known ones" 'sft.loss_type: expected one of nll, dft, found'
e2e_done

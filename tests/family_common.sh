# family_common.sh - what the programs do with every family: sourced by scripts that describe a small model of one in $tmp/tiny.ini. The same losses
# at every stage of ZeRO, on every number of ranks and with offload, plans, checkpoints, recomputation, packed documents, adapters, quantised bases,
# generation and rollouts.
cp "$tmp/tiny.ini" "$tmp/family.ini"
train 1 one checkpoint.save_steps=3 checkpoint.export=hf
expect_exit "one rank" 0
expect "the memory is that of the plan" as_planned
for stage in 0 1 2 3; do
    train 2 "two$stage" zero.stage=$stage
    expect "stage $stage on two ranks has the losses of one rank" close_losses one "two$stage" 1e-5
    expect "stage $stage: memory as planned" as_planned
done
train 2 offload zero.stage=3 zero.offload_optimizer=cpu zero.offload_param=cpu
expect "offload has the losses of one rank" close_losses one offload 1e-5
for way in selective block; do
    train 1 "again_$way" model.activation_checkpointing=$way
    expect "activation_checkpointing = $way has the same losses" close_losses one "again_$way" 0
    expect "$way: memory as planned" as_planned
done
train 2 resumed zero.stage=3 checkpoint.resume="$tmp/one" run.max_steps=6
expect_exit "a run resumes" 0
train 1 masked data.document_mask=true
expect_exit "packed documents" 0
train 1 bf16 precision.dtype=bf16
expect "bf16 has about the same losses" close_losses one bf16 2e-2

# adapters and a quantised base
set -- model.path="$tmp/one/hf" lora.r=4 run.max_steps=3
sed -i -e '/^\[model\]/,/^\[data\]/{/^\[/!d}' "$tmp/tiny.ini"
train 2 lora "$@" zero.stage=3
expect_exit "adapters" 0
train 1 all "$@" lora.target_modules=all-linear
expect_exit "adapters on all linear layers" 0
for base in int8 nf4; do
    train 1 "lora_$base" "$@" lora.base_quantization=$base
    expect_exit "a base in $base" 0
done

# generation: alone, several prompts at a time, and from a shared prompt
printf '{"prompt": "the of"}\n{"prompt": "and a to in he was that"}\n{"prompt": "x"}\n' >"$tmp/prompts.jsonl"
for slots in 1 3; do
    run 0 ./dtrain-generate --greedy --max-new-tokens 20 --prompts "$tmp/prompts.jsonl" --batch-size "$slots" -o "$tmp/said.$slots" "$tmp/one/hf"
    expect_exit "generation, $slots at a time" 0
done
expect "texts do not depend on the number of prompts at a time" cmp "$tmp/said.1" "$tmp/said.3"
run 0 ./dtrain-generate --num-samples 3 --seed 5 --max-new-tokens 20 --prompt "the of and" "$tmp/one/hf"
expect_exit "samples that share a prompt" 0
printf 'the of\nand a to\n' | run 0 ./dtrain-generate --greedy --max-new-tokens 10 --chat --chat-template chatml "$tmp/one/hf"
expect_exit "a conversation" 0

# rollouts
for i in $(seq 0 26); do echo "{\"prompt\": \"count $i\"}"; done >"$tmp/prompts.txt"
head -20 "$tmp/prompts.txt" >"$tmp/rollouts.jsonl"
tail -7 "$tmp/prompts.txt" >"$tmp/held_out.jsonl"
data -o "$tmp/rollouts.h5" "$tmp/rollouts.jsonl"
data -o "$tmp/held_out.h5" "$tmp/held_out.jsonl"
make_task grpo batch.train_batch_size=8 grpo.num_generations=4 grpo.max_completion_length=6
for np in 1 2; do
    train $np "grpo$np" run.max_steps=3 zero.stage=$((3 * (np - 1))) model.path="$tmp/one/hf" model.tokenizer=bytes data.train="$tmp/rollouts.h5" \
        data.validation="$tmp/held_out.h5" "grpo.reward_funcs=keywords:e|a|o"
    expect_exit "grpo on $np rank(s)" 0
    expect "grpo on $np: memory as planned" as_planned
done

full_only
cp "$tmp/family.ini" "$tmp/tiny.ini"
train 1 bits run.reproducible=true
for way in "2 1" "2 3" "3 0" "3 2" "3 3"; do
    train "${way% *}" "bits${way/ /_}" run.reproducible=true zero.stage="${way#* }"
    expect "reproducible on ${way% *} ranks at stage ${way#* }: the losses of one rank" close_losses bits "bits${way/ /_}" 0
done

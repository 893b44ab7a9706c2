#!/bin/bash
# e2e_lora.sh - low-rank adapters. Steps match PEFT's; bits do not depend on ranks, stage, offload, resuming or activation checkpointing.
# Frozen tensors keep their bits. Also: reward models, DPO and rollouts; their reference is the model without its adapters.
# QUICK:
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/lora
data -o "$tmp/sft.h5" $fixture/sft.jsonl
lora() { # NP DIR MODEL ARGS...
    local np=$1 dir=$2 model=$fixture/$3
    [ "$3" != llama ] || model=tests/data/dpo/start
    shift 3
    run "$np" ./dtrain /dev/stdin run.task=sft run.output_dir="$tmp/$dir" run.max_steps=10 run.threads=1 model.path="$model" data.train="$tmp/sft.h5" \
        data.seq_len=64 data.shuffle=false batch.train_batch_size=4 optimizer.lr=1e-2 optimizer.weight_decay=0.1 optimizer.betas="0.9, 0.999" \
        optimizer.eps=1e-8 optimizer.max_grad_norm=1 scheduler.type=constant log.report_to=jsonl checkpoint.save_steps=0 "$@"
}
like_peft() { ten_steps_like "$1" < <(awk -v n="$2" '/^run/ { k++; next } k == n' "$fixture/peft.txt"); } # DIR RUN
n=0
while read -r _ model keys; do
    n=$((n + 1))
    lora 1 "peft$n" "$model" batch.micro_batch_size=2 $keys
    expect "$model $keys: PEFT's steps" like_peft "peft$n" "$n"
done < <(grep '^run' "$fixture/peft.txt")
lora 1 base llama batch.micro_batch_size=4 run.max_steps=1
is "the first loss is the model's own, to the bit" "$(number base loss)" "$(lora 1 first llama batch.micro_batch_size=4 run.max_steps=1 lora.r=8; number first loss)"

# Everything that can have an adapter.
modules='.*(proj|embed_tokens|wte|wpe|lm_head)'
bits="batch.train_batch_size=12 batch.micro_batch_size=1 run.reproducible=true run.max_steps=4 lora.r=4 lora.target_modules=$modules lora.dropout=0.2"
for layout in "1 0 none none" "2 2 none none" "3 3 none none" "4 1 cpu none" "2 3 cpu cpu"; do
    set -- $layout
    lora "$1" "bits$1$3" llama $bits zero.stage="$2" zero.offload_optimizer="$3" zero.offload_param="$4"
    expect "the same bits on $1 ranks at stage $2, offload $3 and $4" same_model "$(newest bits1none)" "$(newest "bits$1$3")"
    expect "planned memory is allocated" as_planned
done
lora 2 halves llama $bits run.max_steps=2
lora 3 halves llama $bits zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks at another stage: the same bits" same_model "$(newest bits1none)" "$(newest halves)"
prints "another scale is no continuation" "lora.alpha: 8 -> 16" lora 1 halves llama $bits lora.alpha=16 run.max_steps=5
expect_exit "the settings are refused" 64
expect_text "where it leads" "to begin with its merged model: dtrain-convert .*/step-00000004.h5 DIR"
for mistake in "lora.lora_alpha=16" "lora.init=pissa" 'lora.target_modules=["q_proj","v_proj"]'; do
    ends "$mistake where there are checkpoints is refused" 64 run 0 ./dtrain --check "$tmp/halves/config.ini" "$mistake"
    expect "the key is the only error" sh -c "[ \$(grep -cE 'error: |trying the previous' '$out') = 1 ] && grep -q 'error: command line: lora' '$out'"
done
expect_text "quotes and brackets are not taken for regular expressions" "lora.target_modules: expected names without quotes and brackets, such as q_proj, v_proj"
half=$tmp/halves/checkpoints/step-00000002.h5
for name in model.embed_tokens.weight model.layers.0.self_attn.q_proj.weight model.layers.1.mlp.down_proj.weight model.norm.weight lm_head.weight; do
    expect "$name stays as it is" h5diff "$half" "$(newest halves)" "/model/$name" "/model/$name"
done
expect "frozen tensors have no moments" sh -c "h5ls '$half/optimizer/exp_avg' >'$tmp/moments' && grep -q lora_ '$tmp/moments' && ! grep -v lora_ '$tmp/moments'"
for kept in selective block; do
    lora 1 $kept llama $bits model.activation_checkpointing=$kept
    expect "activation_checkpointing = $kept: the same bits" same_model "$(newest bits1none)" "$(newest $kept)"
done
lora 1 gpt2bits gpt2 $bits
lora 2 gpt2block gpt2 $bits model.activation_checkpointing=block zero.stage=3
expect "likewise of GPT-2, recomputed on two ranks" same_model "$(newest gpt2bits)" "$(newest gpt2block)"

# ---- tasks ------------------------------------------------------------------------------------------------------------------------------------
bits="batch.micro_batch_size=1 run.reproducible=true lora.r=4 lora.alpha=8 lora.target_modules=$modules"
data -o "$tmp/pairs.h5" tests/data/rm/pairs.jsonl
pairs() { # TASK NP DIR ARGS...
    local task=$1 np=$2 dir=$3
    shift 3
    lora "$np" "$dir" llama $bits run.task="$task" data.train="$tmp/pairs.h5" run.max_steps=6 "$@"
}
pairs rm 1 rm batch.train_batch_size=12
pairs rm 3 rm3 batch.train_batch_size=12 zero.stage=3
expect "a reward model: the same bits on three ranks" same_model "$(newest rm)" "$(newest rm3)"
expect "only the score and the adapters have moments" sh -c "h5ls '$(newest rm)/optimizer/exp_avg' | grep -v lora_ | grep -c . | grep -qx 1 && h5ls '$(newest rm)/optimizer/exp_avg' | grep -q score.weight"

same_lines() { diff <(number "$1" "$3") <(number "$2" "$3"); } # DIR DIR METRIC
# The copy has another path, the same weights and the same activations; its passes are the adapters' model's without them.
for settings in "dpo.loss_type=sigmoid" "dpo.kl_coef=0.1 dpo.kl_estimator=full" "dpo.precompute_reference=true"; do
    name=${settings##*[.=]}
    pairs dpo 2 "dpo$name" zero.stage=3 $settings
    expect "dpo, $settings: the loss of the first step is log 2" [ "$(number "dpo$name" dpo/rewards/margins | head -1)" = 0 ]
    expect "planned memory is allocated" as_planned
    pairs dpo 1 "copy$name" $settings dpo.reference_path=tests/data/../data/dpo/start
    expect "its reference is the model without adapters: the bits of a copy" same_model "$(newest "dpo$name")" "$(newest "copy$name")"
done
expect "adapters learn" above dposigmoid dpo/rewards/margins 0.01
parameters() { awk '/^planned/ { print $2 }' "$out"; } # of the last run
pairs dpo 1 memory run.max_steps=1
alone=$(parameters)
pairs dpo 1 memory2 run.max_steps=1 dpo.reference_path=tests/data/../data/dpo/start
expect "a reference without adapters has no parameters of its own: $alone against $(parameters)" [ "$alone" != "$(parameters)" ]
prints "the reference cannot follow the policy" "sync_reference_steps: expected 0, because with adapters the reference is the frozen model" pairs dpo 1 refused dpo.sync_reference_steps=2
ends "a reference with its own adapters cannot follow the policy" 64 pairs dpo 2 refused model.path="$tmp/dposigmoid" dpo.sync_reference_steps=2
expect_text "by name" "sync_reference_steps: expected 0, because only a model that is trained as a whole"

data --kind prompts -o "$tmp/prompts.h5" tests/data/rm/pairs.jsonl
rollouts() { # TASK NP DIR ARGS...
    local task=$1 np=$2 dir=$3
    shift 3
    lora "$np" "$dir" llama $bits run.task="$task" data.train="$tmp/prompts.h5" batch.train_batch_size=8 run.max_steps=4 "$task.reward_funcs=length" "$@"
}
lengths="grpo.num_generations=4 grpo.max_completion_length=6 grpo.beta=0.1"
rollouts grpo 2 grpo $lengths zero.stage=3
expect "grpo, planned is allocated" as_planned
# The sampler works with a cache, the scorer without: fp32 sums of some ten terms in another order, of log-probabilities around 6.
expect "generation uses the trained adapters: log-probabilities match the scorer's" \
    sh -c "sed -n 's|.*sampling_logp_difference/max\": *\([-+0-9.e]*\).*|\1|p' '$tmp/grpo/metrics.jsonl' | awk '!(\$1 < 2e-5) { bad = 1 } END { exit bad || NR != 4 }'"
rollouts grpo 1 grpocopy $lengths grpo.reference_path=tests/data/../data/dpo/start
expect "grpo: completions of the adapted model, the reference without adapters: the bits of a copy" same_model "$(newest grpo)" "$(newest grpocopy)"
lengths="ppo.response_length=6 ppo.value_path=tests/data/rm/start"
rollouts ppo 2 ppo $lengths zero.stage=2
expect "ppo, planned is allocated" as_planned
pairs rm 1 rmhf batch.train_batch_size=12 checkpoint.export=hf
pairs rm 2 rmalone batch.train_batch_size=12 checkpoint.save=trainable
for start in rm rmhf/hf rmalone; do rollouts ppo 2 "ppo${start%/hf}" run.max_steps=1 ppo.response_length=6 ppo.value_path="$tmp/$start" zero.stage=2; done
expect "a critic from a reward model with adapters is that of the merged model" same_model "$(newest pporm)" "$(newest ppormhf)"
for start in rmhf rmalone; do expect "$start: also apart from the policy" h5diff "$(newest pporm)" "$(newest "ppo$start")" /critic /critic; done
ends "and so is one that begins as what judges" 0 rollouts ppo 1 judged run.max_steps=1 ppo.response_length=6 ppo.reward_path="$tmp/rm" ppo.reward_funcs=
run 2 ./dtrain-convert "$tmp/rm" "$tmp/rm.hf" --tokenizer none
expect "dtrain-convert writes the same model" cmp "$tmp/rm.hf/model.safetensors" "$tmp/rmhf/hf/model.safetensors"
rollouts ppo 1 ppocopy $lengths ppo.reference_path=tests/data/../data/dpo/start
expect "ppo, with a critic that is trained whole: the bits of a copy" same_model "$(newest ppo)" "$(newest ppocopy)"

# Frozen adapters.
a=/model/model.layers.1.self_attn.q_proj.lora_A.weight b=/model/model.layers.0.self_attn.v_proj.lora_B.weight
for frozen in layers.1 q_proj lora_A; do
    ends "model.freeze = $frozen freezes adapters, too" 0 lora 2 "frozen_$frozen" llama $bits model.freeze=$frozen zero.stage=3
    lora 1 "once_$frozen" llama $bits model.freeze=$frozen run.max_steps=1
    expect "$frozen keep their values" h5diff "$(newest "once_$frozen")" "$(newest "frozen_$frozen")" $a $a
    expect "others are trained" sh -c "! h5diff '$(newest "once_$frozen")' '$(newest "frozen_$frozen")' $b $b"
done
ends "a checkpoint without them would lose them" 64 lora 1 refused llama $bits model.freeze=layers.1 checkpoint.save=trainable

full_only

# ---- checkpoints of what is trained alone -----------------------------------------------------------------------------------------------------
bits="batch.train_batch_size=12 batch.micro_batch_size=1 run.reproducible=true run.max_steps=4 lora.r=4 lora.target_modules=$modules lora.dropout=0.2"
base=$tmp/original
cp -r tests/data/dpo/start "$base"
alone() { # NP DIR ARGS...: model.path is $base
    local np=$1 dir=$2
    shift 2
    lora "$np" "$dir" llama $bits model.path="$base" "$@"
}
trained="checkpoint.save=trainable"
same_trained() { # WHOLE ALONE: all that the latter holds
    h5diff "$1" "$2" /optimizer /optimizer && h5ls -r "$2/model" | awk '/Dataset/ { print $1 }' | while read -r name; do h5diff "$1" "$2" "/model$name" "/model$name" || return 1; done
}
alone 1 whole
alone 2 alone $trained zero.stage=3 zero.offload_param=cpu checkpoint.async=true checkpoint.save_steps=1 checkpoint.save_total_limit=2
expect_exit "checkpoint.save = trainable with checkpoint.async" 0
expect "planned memory is allocated" as_planned
expect "the checkpoint holds only the adapters" sh -c "h5ls '$(newest alone)/model' >'$tmp/held' && grep -q lora_ '$tmp/held' && ! grep -v lora_ '$tmp/held'"
expect "the adapters have the bits of a full checkpoint" same_trained "$(newest whole)" "$(newest alone)"
alone 1 halves2 $trained run.max_steps=2
expect "the file is smaller by four bytes for each of 12816 frozen parameters" [ $(($(stat -c %s "$(newest halves2)") + 4 * 12816)) -le "$(stat -c %s "$(newest whole)")" ]
alone 3 halves2 zero.stage=2 $trained checkpoint.resume=auto
expect "resumed on other ranks at another stage: the same bits" same_trained "$(newest whole)" "$(newest halves2)"
alone 2 turns checkpoint.save_steps=1 run.max_steps=1
alone 2 turns checkpoint.save_steps=1 run.max_steps=2 $trained
alone 1 turns checkpoint.save_steps=1 run.max_steps=3
expect "full and trainable checkpoints resume from each other" same_model "$(newest whole)" "$(alone 2 turns >"$out"; newest turns)"
alone 2 best $trained data.validation="$tmp/sft.h5" data.validation_steps=1 checkpoint.load_best_model_at_end=true checkpoint.greater_is_better=true checkpoint.export=hf
expect "the best of these checkpoints is exported" grep -q 'the best model is that of step 1' "$out"
expect "the best checkpoint converts to the exported model" sh -c "./dtrain-convert '$tmp/best/checkpoints/best' '$tmp/best.hf' --tokenizer none && cmp '$tmp/best.hf/model.safetensors' '$tmp/best/hf/model.safetensors'" 
for dir in whole alone; do
    run 0 ./dtrain-generate "$tmp/$dir" --tokenizer ids --prompt "1 2 3" --greedy --max-new-tokens 8 --jsonl -o "$tmp/$dir.text"
    run 2 ./dtrain-convert "$tmp/$dir" "$tmp/$dir.hf" --tokenizer none
done
expect "dtrain-generate writes the same from both" cmp "$tmp/whole.text" "$tmp/alone.text"
expect "dtrain-convert, too" cmp "$tmp/whole.hf/model.safetensors" "$tmp/alone.hf/model.safetensors"
prints "dtrain-info names the base" "^  base +$base: [0-9]* tensors that are not in this file" run 0 ./dtrain-info "$(newest alone)"
lora 1 chain "" $bits model.path="$tmp/alone" $trained run.max_steps=1
lora 1 chain2 "" $bits model.path="$tmp/chain/checkpoints/step-00000001.h5" run.max_steps=1
lora 2 flat "" $bits model.path="$tmp/whole" run.max_steps=1
lora 2 flat2 "" $bits model.path="$tmp/flat" run.max_steps=1
expect "a base may be such a checkpoint itself" same_model "$(newest flat2)" "$(newest chain2)"
ends "a checkpoint of the same run as base is refused" 64 lora 2 chain "" $bits model.path="$tmp/chain" $trained run.max_steps=2 checkpoint.save_total_limit=1
expect_text "by name" "checkpoint.save: expected all, found trainable: it omits what $tmp/chain/checkpoints/step-00000001.h5 contains, but this run replaces or removes"
ends "checkpoint.save = trainable without frozen parameters is refused" 64 lora 1 wrong llama $bits lora.r=0 lora.target_modules= lora.dropout=0 $trained
expect_text "by name" "checkpoint.save: expected all, found trainable: it omits frozen parameters, and this run has none"
printf 'x' | dd of="$base/model.safetensors" bs=1 seek=$(($(stat -c %s "$base/model.safetensors") - 1)) conv=notrunc status=none
ends "a resumed run detects an altered base" 65 alone 2 halves2 $trained run.max_steps=5
expect_text "by name" "$base/model.safetensors: tensor .[a-z_.0-9]*. of this base model was altered after .*/step-00000004.h5 was trained on it"
expect "one error: the previous checkpoint, with the same base, is not tried" sh -c "! grep -q 'trying the previous' '$out' && [ \$(grep -c 'was altered' '$out') = 1 ]"
for start in "model.path=$base run.output_dir=$tmp/halves2" "model.path=$(newest alone) run.output_dir=$tmp/other"; do
    ends "--check reports an altered base" 65 run 2 ./dtrain --check /dev/stdin run.task=sft data.train="$tmp/sft.h5" data.seq_len=64 data.shuffle=false $bits $trained $start
    expect_text "the altered tensor is named" "$base/model.safetensors: tensor .[a-z_.0-9]*. of this base model was altered after .*/step-00000004.h5"
done
wrong "dtrain-convert reports an altered base" 65 "$base/model.safetensors: tensor .*was altered after" ./dtrain-convert "$tmp/alone" "$tmp/x"
alone 2 turns $trained run.max_steps=5
expect_text "a full checkpoint does not resume with the altered base" "tensor .[a-z_.0-9]*. differs from the model's tensor and is not trained in this run, .*; use checkpoint.save = all"
mv "$base" "$tmp/moved"
wrong "a base that has gone is said" 65 "step-00000004.h5 contains only trained parameters .*: $base: No such file" ./dtrain-generate "$tmp/alone" --tokenizer ids --prompt "1 2 3"
ends "a resumed run reports the missing base" 65 alone 2 halves2 $trained run.max_steps=5 
rm -r "$tmp/moved" && cp -r tests/data/dpo/start "$tmp/moved"
ends "model.path names the new place of a moved base" 0 lora 2 halves2 "" $bits model.path="$tmp/moved" $trained

cpu_only

# ---- what is refused -----------------------------------------------------------------------------------------------------------------------------
ends "an unknown layer is refused" 64 lora 1 refused llama lora.r=4 lora.target_modules=q_proj,q_prj batch.micro_batch_size=4
expect_text "by name" "lora.target_modules: this model has no layer 'q_prj'; choose from embed_tokens, q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head"
for pattern in rank_pattern=vproj:16 alpha_pattern=k_proj:3; do
    ends "a pattern for no adapter is refused" 64 lora 1 refused llama lora.r=4 lora.target_modules=q_proj,v_proj "lora.$pattern" batch.micro_batch_size=4
    expect_text "by key" "lora.${pattern%%=*}: expected the end of a layer name with an adapter, found '[a-z_]*'"
done
for key in target_modules modules_to_save; do
    ends "a list of nothing is refused" 64 lora 1 refused llama lora.r=4 "lora.$key= , " batch.micro_batch_size=4
    expect_text "by key" "lora.$key: expected names of modules, found ','"
done
lora 2 refused llama lora.r=4 lora.target_modules=q_prj batch.micro_batch_size=2 $trained
expect "of a model whose adapters have a mistake nothing else is said" sh -c "[ \$(grep -c 'error: ' '$out') = 1 ] && grep -q 'lora.target_modules: ' '$out'"
order="$bits lora.r=0 lora.target_modules= lora.dropout=0 run.task=dpo data.train=$tmp/pairs.h5 lora.path=$tmp/later/adapter $trained"
ends "DPO from a missing adapter" 65 lora 2 order llama $order
expect "nothing else is said: no adapters are no mistake of checkpoint.save" sh -c "[ \$(grep -c 'error: ' '$out') = 1 ] && grep -q 'lora.path: $tmp/later/adapter: expected a directory' '$out'"
mkdir "$tmp/later" && cp -r "$tmp/bits1none/adapter" "$tmp/later/"
lora 2 order llama $order run.max_steps=1
mv "$tmp/later" "$tmp/gone"
ends "the adapter of the reference has been removed" 65 lora 2 order llama $order run.max_steps=2
expect "the missing adapter of the reference is the only error" sh -c "[ \$(grep -c 'error: ' '$out') = 1 ] && grep -q 'lora.path: $tmp/later/adapter: expected a directory' '$out'"
ends "the run resumes with the adapter's new path" 0 lora 2 order llama $order run.max_steps=2 lora.path="$tmp/gone/adapter"
ends "a run that would replace the adapter of its reference is refused" 64 lora 2 gone llama $order lora.path="$tmp/gone/adapter"
expect_text "by name" "lora.path: the reference uses the adapter of $tmp/gone/adapter, which this run replaces at its end; choose another run.output_dir"
rm -r "$tmp/gone/adapter" && cp -r "$tmp/flat/adapter" "$tmp/gone/"
ends "resuming with another adapter of the reference is refused" 65 lora 2 order llama $order run.max_steps=3 lora.path="$tmp/gone/adapter"
expect_text "by name" "with the adapter of $tmp/gone/adapter: expected the reference that the run started with"
e2e_done

#!/bin/bash
# e2e_peft.sh - adapter directories. PEFT's load with the logits and scores of PEFT, and merge into the same models. A run writes such a
# directory, and training continues from it. Truncated, wrong, missing or foreign files are refused by name.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/peft tensors=adapter_model.safetensors
base_of() { case $1 in llama | tables | grown | chosen | dora) echo tests/data/dpo/start ;; gpt2 | tied | dora_gpt2 | apart | table) echo tests/data/lora/gpt2 ;; qwen2 | shared | head) echo tests/data/hf/qwen2 ;; moe) echo tests/data/lora/moe ;; *) echo tests/data/rm/start ;; esac; }
prompts() { sed 's/ |.*//; s/ /, /g; s/.*/{"ids": [&]}/' "$1"; }
# Ids to the letter. fp32 keeps 6e-8 of each of some hundred terms, logits are of size 3, and those printed have seven digits.
near() { # EXPECTED FOUND: ids | numbers
    paste -d'|' "$1" "$2" | awk -F' *[|] *' '{ n = NF / 2; for (f = 1; f <= n; f++) { k = split($f, a, " "); if (split($(f + n), b, " ") != k || k == 0) bad = 1
            for (i = 1; i <= k; i++) { d = a[i] - b[i]; if (d < 0) d = -d; if (d > (f < n ? 0 : 2e-5)) { print "line", NR ":", a[i], b[i]; bad = 1 } } } }
        END { exit bad || NR == 0 }'
}
greedily() { # NAME NP ARGS...
    local name=$1 np=$2
    shift 2
    prompts "$fixture/$name/greedy.txt" >"$tmp/prompts.jsonl"
    run "$np" ./dtrain-generate "$@" --tokenizer ids --prompts "$tmp/prompts.jsonl" --greedy --max-new-tokens 6 --jsonl --logprobs --threads 1 -o "$tmp/found.jsonl" --force
    sed 's/.*"ids":\[\([^]]*\)\],"prompt_ids":\[\([^]]*\)\].*"logprobs":\[\([^]]*\)\].*/\2 | \1 | \3/; s/,/ /g' "$tmp/found.jsonl" >"$tmp/found"
}

for name in llama gpt2 qwen2 grown chosen moe dora dora_gpt2; do
    base=$(base_of $name)
    greedily $name 0 "$base" --adapter $fixture/$name
    expect "$name: what PEFT writes, with its adapter" near $fixture/$name/greedy.txt "$tmp/found"
    greedily $name 2 "$base" --adapter $fixture/$name --zero-stage 3
    expect "$name: and in shards" near $fixture/$name/greedy.txt "$tmp/found"
    run 0 ./dtrain-convert --adapter $fixture/$name "$base" "$tmp/$name-1" --tokenizer none
    run 3 ./dtrain-convert --adapter $fixture/$name "$base" "$tmp/$name" --tokenizer none
    expect "$name: merged on any ranks it has the same bytes" cmp "$tmp/$name/model.safetensors" "$tmp/$name-1/model.safetensors"
    n_base=$(./dtrain-convert "$base" "$tmp/$name.h5" --tokenizer none 2>&1 | grep -o '[0-9]* parameters')
    expect "$name: and $n_base, as the model without adapters" grep -q ": $n_base from" "$out"
    greedily $name 0 "$tmp/$name"
    expect "$name: merged, too" near $fixture/$name/greedy.txt "$tmp/found"
done
for name in tables tied shared head table apart; do # adapters of embeddings and heads, or these trained whole; the head tied or not, and PEFT's ensure_weight_tying
    base=$(base_of $name)
    greedily $name 2 "$base" --adapter $fixture/$name --zero-stage 3
    expect "$name: what PEFT writes, with its adapter, in shards" near $fixture/$name/greedy.txt "$tmp/found"
    run 3 ./dtrain-convert --adapter $fixture/$name "$base" "$tmp/$name" --tokenizer none
    greedily $name 0 "$tmp/$name"
    expect "$name: merged, too" near $fixture/$name/greedy.txt "$tmp/found"
    expect "$name: with a head of its own" grep -q '"tie_word_embeddings": false' "$tmp/$name/config.json"
done
chosen() { # SED-COMMAND: the adapter whose modules are chosen by layer, said in other words
    rm -rf "$tmp/words" && cp -r $fixture/chosen "$tmp/words"
    sed -i -z "$1" "$tmp/words/adapter_config.json"
}
layers='"layers_to_transform": [^]]*]' names='"layers_pattern": null' excluded='"exclude_modules": [^]]*]'
for words in "s/$layers/\"layers_to_transform\": 1/" "s/$names/\"layers_pattern\": [\"h\", \"layers\"]/" \
    "s/$names/\"layers_pattern\": \"model.layers\"/; s/$excluded/\"exclude_modules\": \".*[.]down_.*\"/"; do
    chosen "$words"
    run 2 ./dtrain-convert --adapter "$tmp/words" "$(base_of chosen)" "$tmp/chosen-words" --tokenizer none --force
    expect "$words: the same modules, and no others" cmp "$tmp/chosen-words/model.safetensors" "$tmp/chosen/model.safetensors"
done
while read -r what regex words; do
    chosen "$words"
    wrong "$what" 65 "$regex" ./dtrain-convert --adapter "$tmp/words" "$(base_of chosen)" "$tmp/x" --tokenizer none
done <<END
not-excluded layers.1.mlp.down_proj.lora_A.weight..is.missing s/$excluded/"exclude_modules": "down_proj"/
another-layer layers.0.self_attn.q_proj.lora_A.weight..is.missing s/$layers/"layers_to_transform": [0]/
no-such-layers layers.1.mlp.up_proj.lora_A.weight.:.this.model.has.no.such.tensor s/$names/"layers_pattern": "h"/
a-layer-by-name layers_to_transform:.expected.the.number.of.a.layer,.or.a.list s/$layers/"layers_to_transform": ["1"]/
a-pattern-of-patterns layers_pattern:.expected.a.name,.or.a.list s/$names/"layers_pattern": "(layers|h)"/
names-without-layers layers_pattern.needs.layers_to_transform s/$layers/"layers_to_transform": null/; s/$names/"layers_pattern": "h"/
all-but-some target_modules:.expected.module.names.*all-linear s/"target_modules": [^]]*]/"target_modules": "all-linear"/
a-regex-by-layer target_modules:.expected.a.list s/"target_modules": [^]]*]/"target_modules": ".*proj"/
END
greedily llama 0 "$(base_of llama)"
expect "the text differs without the adapter" sh -c "! cmp -s '$tmp/found' $fixture/llama/greedy.txt"
prompts $fixture/score/scores.txt >"$tmp/answers.jsonl"
for judge in tests/data/rm/start tests/data/dpo/start; do # a reward model, and a language model that has no score of its own
    run 2 ./dtrain-generate --score $judge --adapter $fixture/score --answers "$tmp/answers.jsonl" --tokenizer ids --jsonl --threads 1 -o "$tmp/found.jsonl" --force
    expect_exit "a score from the adapter's file, for $judge" 0
    [ $judge = tests/data/dpo/start ] && continue
    paste -d'|' <(sed 's/|.*//' $fixture/score/scores.txt) <(sed 's/.*"reward":\([-0-9.e]*\).*/ \1/' "$tmp/found.jsonl") >"$tmp/found"
    expect "is PEFT's" near $fixture/score/scores.txt "$tmp/found"
done
for base in tests/data/rm/start tests/data/dpo/start; do
    ends "an adapter with a score is merged into $base" 0 run 2 ./dtrain-convert --adapter $fixture/score $base "$tmp/score" --tokenizer none --force
    run 2 ./dtrain-generate --score "$tmp/score" --answers "$tmp/answers.jsonl" --tokenizer ids --jsonl --threads 1 -o "$tmp/merged.jsonl" --force
    [ $base = tests/data/rm/start ] || continue
    paste -d'|' <(sed 's/|.*//' $fixture/score/scores.txt) <(sed 's/.*"reward":\([-0-9.e]*\).*/ \1/' "$tmp/merged.jsonl") >"$tmp/found"
    expect "scores match PEFT's" near $fixture/score/scores.txt "$tmp/found"
done

# ---- a run ------------------------------------------------------------------------------------------------------------------------------------
data -o "$tmp/sft.h5" tests/data/lora/sft.jsonl
data -o "$tmp/pairs.h5" tests/data/rm/pairs.jsonl
train_from() { # NP DIR MODEL ARGS...
    local np=$1 dir=$2 model=$3
    shift 3
    run "$np" ./dtrain /dev/stdin run.task=sft run.output_dir="$tmp/$dir" run.max_steps=3 run.threads=1 run.reproducible=true model.path="$model" \
        data.train="$tmp/sft.h5" data.seq_len=64 data.shuffle=false batch.train_batch_size=12 batch.micro_batch_size=1 optimizer.lr=1e-2 precision.dtype=fp32 \
        scheduler.type=constant log.report_to=jsonl checkpoint.save_steps=0 "$@"
}
settings() {
    case $1 in
    moe) echo "lora.r=3 lora.alpha=5 lora.target_modules=q_proj,up_proj lora.target_parameters=experts.gate_up_proj,mlp.experts.down_proj" ;;
    gpt2) echo "lora.r=3 lora.alpha=5 lora.target_modules=c_attn,c_proj lora.modules_to_save=wte" ;;
    *) echo "lora.r=4 lora.target_modules=.*(proj|embed_tokens|lm_head) lora.rank_pattern=v_proj:2 lora.alpha_pattern=up_proj:3 lora.use_rslora=true" ;;
    esac
}
for name in llama gpt2 moe; do
    base=$(base_of $name)
    ends "$name: a run with adapters" 0 train_from 1 $name-run1 "$base" $(settings $name) checkpoint.export=hf
    train_from 3 $name-run3 "$base" $(settings $name) zero.stage=3 zero.offload_optimizer=cpu checkpoint.export=hf
    for file in adapter/adapter_config.json adapter/adapter_model.safetensors hf/model.safetensors; do
        expect "$name: $file is the same on three ranks at stage 3" cmp "$tmp/$name-run1/$file" "$tmp/$name-run3/$file"
    done
    run 2 ./dtrain-convert --adapter "$tmp/$name-run1/adapter" "$base" "$tmp/$name-merged" --tokenizer none
    expect "$name: dtrain-convert merges to the same model" cmp "$tmp/$name-merged/model.safetensors" "$tmp/$name-run1/hf/model.safetensors"
    run 2 ./dtrain-convert "$tmp/$name-run3" "$tmp/$name-from" --tokenizer none
    expect "$name: and so from the checkpoint" cmp "$tmp/$name-from/model.safetensors" "$tmp/$name-run1/hf/model.safetensors"
    greedily $name 0 "$tmp/$name-run1"
    mv "$tmp/found.jsonl" "$tmp/of-checkpoint"
    greedily $name 0 "$base" --adapter "$tmp/$name-run1/adapter"
    expect "$name: the checkpoint writes what its adapter writes" cmp "$tmp/found.jsonl" "$tmp/of-checkpoint"
    ends "$name: training continues from the adapter" 0 train_from 1 $name-on "$base" run.max_steps=1 lora.path="$tmp/$name-run1/adapter"
    train_from 2 $name-merged-on "$tmp/$name-run1/hf" run.max_steps=1 $(settings $name) zero.stage=2
    expect "$name: from where it was" close_losses $name-on $name-merged-on 1e-5
    ends "$name: and is resumed on two ranks" 0 train_from 2 $name-on "$base" run.max_steps=2 lora.path="$tmp/$name-run1/adapter" zero.stage=3 checkpoint.resume=auto
done
ends "training continues from an adapter of some layers" 0 train_from 2 chosen-on "$(base_of chosen)" lora.path=$fixture/chosen run.max_steps=1
ends "a run resumes from its checkpoint" 0 run 2 ./dtrain "$tmp/chosen-on/config.ini" run.max_steps=2
module_names() { grep -ao '[a-z0-9_.]*[.]lora_[AB][.]weight' "$1/$tensors" | sort; }
is "which has adapters in the same modules" "$(module_names "$tmp/chosen-on/adapter")" "$(module_names $fixture/chosen)"
greedily chosen 0 "$tmp/chosen-on"
mv "$tmp/found.jsonl" "$tmp/of-checkpoint"
greedily chosen 0 "$(base_of chosen)" --adapter "$tmp/chosen-on/adapter"
expect "and whose own adapter names them: it writes what the checkpoint writes" cmp "$tmp/found.jsonl" "$tmp/of-checkpoint"
expect "the keys say what the adapter is" grep -q '^target_modules = c_attn, c_proj$' "$tmp/gpt2-on/config.ini"
data --kind prompts -o "$tmp/prompts.h5" tests/data/rm/pairs.jsonl
from_adapters() { # TASK WHAT METRIC VALUE ARGS...
    local task=$1 what=$2 metric=$3 value=$4 data=$tmp/prompts.h5
    shift 4
    [ "$task" != dpo ] || data=$tmp/pairs.h5
    rm -rf "${tmp:?}/$task"
    run 2 ./dtrain /dev/stdin run.task="$task" run.output_dir="$tmp/$task" run.max_steps=1 run.threads=1 data.train="$data" data.seq_len=64 batch.train_batch_size=4 \
        batch.micro_batch_size=2 precision.dtype=fp32 log.report_to=jsonl "$@"
    expect "$task from $what: the reference has it, too, so $metric begins at $value" \
        awk 'BEGIN { d = ARGV[1] - ARGV[2]; exit ARGV[1] == "" || d * d > 1e-12 }' "$(number "$task" "$metric")" "$value"
    expect "planned is allocated" as_planned
}
while read -r what start; do
    from_adapters dpo "$what" loss 0.693147 $start
    from_adapters grpo "$what" grpo/kl 0 $start grpo.num_generations=2 grpo.max_completion_length=6 grpo.beta=0.1 grpo.reward_funcs=length
    from_adapters ppo "$what" ppo/objective/kl 0 $start ppo.response_length=6 ppo.value_path=tests/data/rm/start ppo.reward_funcs=length
done <<END
adapter model.path=$(base_of llama) lora.path=$fixture/llama
checkpoint model.path=$tmp/llama-run1
END

# ---- [lora] with existing adapters ------------------------------------------------------------------------------------------------------------
train_from 2 next "$tmp/llama-run1" run.max_steps=1 lora.r=4 lora.rank_pattern="v_proj : 2"
expect "training continues from the adapters of a checkpoint" close_losses next llama-merged-on 1e-5
expect "as its own do then" grep -q '^alpha_pattern = up_proj:3$' "$tmp/next/config.ini"
train_from 2 tied-run "$(base_of tied)" lora.r=2 lora.alpha=20 lora.target_modules=wte,wpe,c_attn zero.stage=3 checkpoint.export=hf
expect_text "a tied head has no part in the embedding's adapter, which is said" 'the head is tied to the embedding, but, as in PEFT, their adapters are separate'
run 2 ./dtrain-convert --adapter "$tmp/tied-run/adapter" "$(base_of tied)" "$tmp/tied-merged" --tokenizer none
expect "merged by dtrain-convert it is the model that is exported" cmp "$tmp/tied-merged/model.safetensors" "$tmp/tied-run/hf/model.safetensors"
for start in "$tmp/llama-run1" "$tmp/llama-run1/hf" "$(base_of llama) lora.path=$tmp/llama-run1/adapter" "$tmp/tied-run" "$tmp/tied-run/hf"; do
    run 2 ./dtrain /dev/stdin run.task=eval run.output_dir= run.threads=1 model.path=$start data.validation="$tmp/sft.h5" data.seq_len=64 precision.dtype=fp32 batch.micro_batch_size=1
    grep -o 'loss [0-9.]*' "$out" >>"$tmp/evaluated"
done
expect "evaluated it is the merged model, as the base with its adapter is" awk '{ loss[NR] = $2 } END { d = loss[1] - loss[2]; e = loss[4] - loss[5]; exit NR != 5 || loss[3] != loss[1] || d * d > 1e-10 || e * e > 1e-10 }' "$tmp/evaluated"
cp -r $fixture/llama "$tmp/dropping" && sed -i 's/"lora_dropout": 0.0/"lora_dropout": 0.5/' "$tmp/dropping/adapter_config.json"
train_from 1 plain "$(base_of llama)" lora.path=$fixture/llama run.max_steps=1
train_from 2 dropping "$(base_of llama)" lora.path="$tmp/dropping" run.max_steps=1
expect "an adapter's dropout is taken" sh -c "grep -q '^dropout = 0.5$' '$tmp/dropping/config.ini'"
train_from 2 given "$(base_of llama)" lora.path="$tmp/dropping" run.max_steps=1 lora.dropout=0
run 2 ./dtrain "$tmp/given/config.ini" run.output_dir="$tmp/again"
expect "a run's own config.ini, where every key is given, is not warned of" sh -c "! grep -qE 'warning: .*is (not used|ignored)' '$out'"
for dir in given again; do is "$dir: dropout stays 0 where it is given, on all ranks" "$(number plain loss) $(number plain grad_norm)" "$(number $dir loss) $(number $dir grad_norm)"; done
expect "the loss with dropout differs" [ "$(number plain loss)" != "$(number dropping loss)" ]
from_adapters dpo "an adapter that was trained with dropout" loss 0.693147 model.path="$(base_of llama)" lora.path="$tmp/dropping"
expect "whose adapters they are is said once, and not that the model has none" \
    sh -c "[ \$(grep -c 'the adapters are those of $tmp/dropping' '$out') = 1 ] && ! grep -q 'has no adapters' '$out'"

train_from 1 none "$(base_of llama)" run.max_steps=1
ends "the config.ini of a run without adapters, with one" 0 run 2 ./dtrain "$tmp/none/config.ini" run.output_dir="$tmp/since" lora.path="$tmp/dropping"
is "says nothing of it: it is as it was" "$(number dropping loss) $(number dropping grad_norm)" "$(number since loss) $(number since grad_norm)"
ends "a run resumes without the directory of its initial adapter" 0 train_from 2 llama-on "$(base_of llama)" lora.path="$tmp/gone" run.max_steps=3
expect_text "from its checkpoint" 'resumed from .*/llama-on/checkpoints/step-00000002.h5'
ends "a new run needs the directory of its adapter" 65 train_from 2 anew "$(base_of llama)" lora.path="$tmp/gone" run.max_steps=2

# ---- what is refused ----------------------------------------------------------------------------------------------------------------------------
broken() { # NAME REGEX SED-COMMAND FILE: of the llama's adapter
    rm -rf "$tmp/broken" && cp -r $fixture/llama "$tmp/broken"
    sed -i "$3" "$tmp/broken/$4"
    wrong "$1" 65 "$2" ./dtrain-convert --adapter "$tmp/broken" "$(base_of llama)" "$tmp/x"
}
broken "another rank" 'layers.0.*lora_A.weight`: expected the shape \[5, 16\] of this model, found \[4, 16\]' 's/"r": 4/"r": 5/' adapter_config.json
broken "a rank that is none" 'r: expected a rank from 1 to 65536, found -4' 's/"r": 4/"r": -4/' adapter_config.json
broken "no JSON" 'adapter_config.json' 's/^{//' adapter_config.json
broken "another kind of adapter" 'peft_type: expected LORA, found LOHA' 's/"LORA"/"LOHA"/' adapter_config.json
for key in lora_bias use_qalora; do broken "$key" "adapters with $key are not supported" "s/\"$key\": false/\"$key\": true/" adapter_config.json; done
broken "layer_replication" "adapters with layer_replication" 's/"layer_replication": null/"layer_replication": [[0, 1]]/' adapter_config.json
ends "a parameter that is none of experts or routers" 64 train_from 1 refused "$(base_of moe)" lora.r=2 lora.target_parameters=self_attn.q_proj.weight
expect_text "is named" "command line: lora.target_parameters: 'self_attn.q_proj.weight' is not the name of experts or of a router; expected names such as mlp.experts.gate_up_proj"
ends "experts with dropout" 64 train_from 1 refused "$(base_of moe)" lora.r=2 lora.target_parameters=down_proj lora.dropout=0.1
expect_text "are refused" "command line: lora.dropout: adapters of experts \(target_parameters\) have no dropout, as in PEFT: expected 0, found 0.1"
ends "a model without experts" 64 train_from 1 refused "$(base_of llama)" lora.r=2 lora.target_parameters=down_proj
expect_text "is named, too" "command line: lora.target_parameters: 'down_proj': this model has no experts"
broken "parameters of a model without experts" "target_parameters: 'down_proj': this model has no experts" 's/"target_parameters": null/"target_parameters": ["down_proj"]/' adapter_config.json
broken "biases" 'bias: all: adapters that train biases' 's/"bias": "none"/"bias": "all"/' adapter_config.json
broken "a base that PiSSA changed" 'init_lora_weights: .*"pissa"' 's/"init_lora_weights": true/"init_lora_weights": "pissa"/' adapter_config.json
broken "an adapter that is missing" 'base_model.model.model.layers.0.*lora_A.weight. is missing' 's/layers.0.self_attn.q_proj.lora_A/layers.0.self_attn.x_proj.lora_A/' $tensors
broken "a head that is missing" 'base_model.model.lm_head.weight. is missing' 's/model.lm_head.weight/model.lm_haed.weight/' $tensors
broken "an adapter that nothing names" 'up_proj.lora_A.weight.: this model has no such tensor, or adapter_config.json lists no adapter' 's/"model.layers.1.mlp.up_proj"/"model.layers.1.mlp.gate_proj"/' adapter_config.json
broken "numbers of another type" 'expected F32, F16 or BF16, found I16' '1s/"F16"/"I16"/g' $tensors
broken "no layer of this model" 'broken: this adapter belongs to another model: its modules .* are not layers of this one, whose layers are embed_tokens, q_proj, k_proj' 's/_proj"/_prj"/' adapter_config.json
rm -rf "$tmp/broken" && cp -r $fixture/llama "$tmp/broken" && truncate -s -4 "$tmp/broken/$tensors"
wrong "numbers that were cut short" 65 'adapter_model.safetensors.*cut short' ./dtrain-generate "$(base_of llama)" --adapter "$tmp/broken"
rm "$tmp/broken/$tensors"
wrong "no tensors" 65 'adapter_model.safetensors, which does not exist' ./dtrain-generate "$(base_of llama)" --adapter "$tmp/broken"
wrong "no adapter" 65 'adapter_config.json is missing' ./dtrain-generate "$(base_of llama)" --adapter "$(base_of gpt2)"
sed -z 's/"lm_head",\?//; s/"wte",\(\s*\]\)/"wte"\1/' $fixture/gpt2/adapter_config.json >"$tmp/broken/adapter_config.json"
sed '1s/model.lm_head.weight/model.base_layer.wgt/' $fixture/gpt2/$tensors >"$tmp/broken/$tensors"
ends "an embedding apart from its head is used" 0 run 0 ./dtrain-convert --adapter "$tmp/broken" "$(base_of gpt2)" "$tmp/table-merged" --tokenizer none
wrong "the adapter of another family" 65 'peft/llama: this adapter belongs to another model: .*, whose layers are wte, wpe, c_attn, c_proj, c_fc, lm_head' ./dtrain-convert --adapter $fixture/llama "$(base_of gpt2)" "$tmp/x"
wrong "the adapter of another model" 65 'target_modules|expected the shape' ./dtrain-generate "$(base_of qwen2)" --adapter $fixture/llama
wrong "an adapter as a model" 65 'llama: expected a model, found only adapters' ./dtrain-generate $fixture/llama
wrong "two adapters" 64 'this checkpoint already contains adapters' ./dtrain-convert --adapter $fixture/llama "$tmp/llama-run1" "$tmp/x"
wrong "a checkpoint of a merged model" 64 'a model with adapters can only be converted to a directory' ./dtrain-convert --to checkpoint --adapter $fixture/llama "$(base_of llama)" "$tmp/x.h5"
expect "nothing was made of any of them" test ! -e "$tmp/x" -a ! -e "$tmp/x.h5"
train_from 2 path-run "$(base_of llama)" lora.r=2 lora.target_modules=all-linear run.max_steps=1
wrong "a run's directory, which has one" 65 'path-run: expected an adapter: adapter_config.json is missing; there is one in .*/path-run/adapter' \
    ./dtrain-generate "$(base_of llama)" --adapter "$tmp/path-run"
train_from 2 wrong "$(base_of llama)" lora.path=$fixture/llama lora.r=8
expect_text "a key that the adapter contradicts is refused" 'lora.r: the adapter of .*/llama has 4; leave the key out'
ends "another scale for a checkpoint's adapters is refused" 64 train_from 2 wrong "$tmp/llama-run1" lora.alpha=32
expect_text "by name" 'lora.alpha: the adapter of .*/step-00000003.h5 has 8; leave the key out'
prints "also where it is the default" 'lora.alpha: the adapter of .* has 5; leave the key out' train_from 2 wrong "$tmp/gpt2-run1" lora.alpha=8
ends "the adapter of another family, to go on from" 65 train_from 2 wrong "$(base_of gpt2)" lora.path=$fixture/llama
expect_text "by the key that names it" 'lora.path: this adapter belongs to another model'
prints "a second adapter, too" 'lora.path: the checkpoint .* already contains adapters' train_from 1 wrong "$tmp/llama-run1" lora.path=$fixture/llama
ends "training on of an adapter that embedding and head share" 65 train_from 1 wrong "$(base_of shared)" lora.path=$fixture/shared
expect_text "by name" 'the adapter of .*/shared: ensure_weight_tying: a shared adapter of model.embed_tokens and its tied weights can be used and merged, but not trained'
for embedding in own other; do # PEFT writes the embedding of an extended vocabulary with adapters that do not train it
    cp -r $fixture/llama "$tmp/$embedding"
    python3 - "$(base_of llama)/model.safetensors" "$tmp/$embedding/$tensors" $embedding <<'PY'
import struct, sys
from fixtures import safetensors, write_safetensors
dtype, shape, table = safetensors(sys.argv[1])["model.embed_tokens.weight"]
own = table if sys.argv[3] == "own" else table[:-4] + struct.pack("<f", 0.5)
write_safetensors(sys.argv[2], safetensors(sys.argv[2]) | {"base_model.model.model.embed_tokens.weight": (dtype, shape, own)})
PY
done
sed -i -z 's/"target_modules": \[[^]]*\]/"target_modules": ".*_proj$"/; s/"up_proj": 12/"(?:up)_proj$": 12/' "$tmp/own/adapter_config.json"
train_from 2 own-on "$(base_of llama)" lora.path="$tmp/own" run.max_steps=1 zero.stage=3
is "adapters with the model's own embedding and with name patterns: training continues" "$(number own-on loss)" "$(number plain loss)"
run 2 ./dtrain "$tmp/own-on/config.ini" lora.path= model.path="$tmp/own-on" run.output_dir="$tmp/own-further"
expect "a run from the checkpoint has the same patterns" grep -q '^alpha_pattern = (?:up)_proj\$:12$' "$tmp/own-further/config.ini"
ends "an adapter with another, untrained embedding is refused" 65 train_from 2 wrong "$(base_of llama)" lora.path="$tmp/other" zero.stage=3
expect_text "by name" 'other/adapter_model.safetensors: tensor .model.embed_tokens.weight. differs from the model.s tensor and is not trained in this run'
ends "dtrain-convert merges an adapter with another embedding" 0 run 2 ./dtrain-convert --adapter "$tmp/other" "$(base_of llama)" "$tmp/other-merged" --tokenizer none
for alpha in '"lora_alpha": 70000' '"lora_alpha": 8, "alpha_pattern": {"q_proj": 1e30}'; do
    rm -rf "$tmp/alpha" && cp -r $fixture/llama "$tmp/alpha"
    sed -i -z 's/"alpha_pattern": {[^}]*},//; s/"lora_alpha": [0-9]*/'"$alpha"'/' "$tmp/alpha/adapter_config.json"
    ends "$alpha, which no key can say" 65 train_from 1 wrong "$(base_of llama)" lora.path="$tmp/alpha"
    expect_text "is said of the adapter" "the adapter of $tmp/alpha: alpha: expected 1e-06 to 65536 for training, found (70000|1e.30)"
done
ends "a missing adapter" 65 train_from 1 wrong "$(base_of llama)" lora.path="$tmp/nowhere"
run 2 ./dtrain --check /dev/stdin run.task=sft run.output_dir="$tmp/checked" model.path="$(base_of llama)" lora.path="$tmp/broken" data.train="$tmp/sft.h5" data.seq_len=64 \
    batch.train_batch_size=4
expect_text "--check reads the adapter, too" 'lora.path: this adapter belongs to another model'
e2e_done

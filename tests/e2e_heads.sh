#!/bin/bash
# e2e_heads.sh - classifiers and embeddings. Ten steps match transformers and sentence-transformers, on any number of ranks and at any stage.
# Also: bits in reproducible mode; negatives of all ranks and micro-steps; learning; resuming; adapters; metrics; faults; errors.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
for name in single pair multi regression tokens; do data --kind labels -o "$tmp/$name.h5" "tests/data/classify/$name.jsonl"; done
for name in texts pairs; do data -o "$tmp/$name.h5" "tests/data/embed/$name.jsonl"; done
make_task classify run.max_steps=6 data.train="$tmp/single.h5" data.shuffle=false batch.train_batch_size=6
# Layouts: also where ranks have no sample in the last step of an epoch.
against_trl classify 16 1 "1 2 3 1" "1 3 2 2" "3 2 1 3" "4 3 0 1" "5 2 3 1" "5 3 2 1"
make_task embed run.max_steps=6 data.train="$tmp/texts.h5" data.shuffle=false batch.train_batch_size=6
# Micro-batches of 6, 3, 2 and 1: the candidates are those of the whole step.
against_trl embed 16 1 "1 1 0 6" "1 2 3 3" "2 2 1 1" "2 3 2 2" "4 3 3 1" "5 2 2 3" "5 3 0 2"
# First losses to 1e-6: later ones add what Adam makes of roundings.
first_losses() { # TASK
    local n=0
    while IFS= read -r _; do
        as_trl "$1" 16 1 first $((n += 1)) run.max_steps=1 checkpoint.export=none
        number first loss | head -1
    done < <(trl_runs "$1")
}
theirs() { sed -n 's/.*"metrics": \["loss".*"steps": \[\[\([-0-9.e]*\),.*/\1/p' "tests/data/$1/trl.json"; }
agree() { awk -v n="$(trl_runs "$1" | wc -l)" '{ d = $1 - $2; if (NF != 2 || (d < 0 ? -d : d) > 1e-6 * $2) { print "run", NR ":", $0; bad = 1 } } END { exit bad || NR != n }' \
    <(paste -d' ' <(first_losses "$1") <(theirs "$1")); }
expect "the loss of each first step of embeddings, to 1e-6" agree embed
# Bit for bit in reproducible mode: steps of 12 of 23 groups, so that every second one has 11, which some ranks and micro-steps have none of.
keys=(model.path=tests/data/embed/start data.train="$tmp/texts.h5" data.validation="$tmp/texts.h5" data.validation_steps=2 embed.pooling=mean embed.matryoshka_dims=16,8)
for layout in "1 0" "2 2" "3 3 zero.offload_optimizer=cpu zero.offload_param=cpu" "2 1 data.prefetch=0"; do
    set -- $layout
    bits "$1" "bits$1$2" "${keys[@]}" zero.stage="$2" "${@:3}"
    expect "the same bits on $1 ranks at stage $2${3:+, ${*:3}}" same_model "$(newest bits10)" "$(newest "bits$1$2")"
    is "the same measures" "$(number bits10 embed/validation_ndcg@10; number bits10 validation_loss)" "$(number "bits$1$2" embed/validation_ndcg@10; number "bits$1$2" validation_loss)"
done
bits 2 halves "${keys[@]}" run.max_steps=2
bits 3 halves "${keys[@]}" zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks: the same bits" same_model "$(newest bits10)" "$(newest halves)"
train 2 learns model.path=tests/data/embed/start run.max_steps=150 data.validation="$tmp/texts.h5" embed.pooling=mean embed.scale=10 log.report_to="stdout, jsonl"
expect_text "a step shows the accuracy" 'step 150/150 .*  loss [0-9.]+  accuracy [0-9.]+  grad '
expect "queries find their texts" above learns embed/validation_mrr@10 0.7
expect "planned is allocated" as_planned
fails_alone 1 task.embed 2 train 2 alone model.path=tests/data/embed/start
fails_alone 1 task.embed 2 train 2 alone model.path=tests/data/embed/start batch.micro_batch_size=1
expect "sentence-transformers' files" sh -c 'cd "$1/hf" && ls modules.json 1_Pooling/config.json 2_Normalize config_sentence_transformers.json && grep -q LlamaModel config.json' sh "$tmp/trl"
measure() { rm -rf "$tmp/measured"; run 2 ./dtrain "$tmp/tiny.ini" run.task=eval model.path="tests/data/$1" data.train= data.validation="$tmp/$2.h5" run.output_dir="$tmp/measured" "${@:3}"; }
ends "retrieval without training" 0 measure embed/start texts embed.pooling=mean
near "MRR of the ranks that torch finds" "$(number measured embed/validation_mrr@10)" 0.04746376811594202 1e-6
near "NDCG" "$(number measured embed/validation_ndcg@10)" 0.0865818482755721 1e-6
near "recall" "$(number measured embed/validation_recall@5)" 0.13043478260869565 1e-6
ends "on two ranks of a sequence" 0 train 2 cp model.path=tests/data/embed/start mesh.cp=2 batch.micro_batch_size=2
train 1 cp1 model.path=tests/data/embed/start batch.micro_batch_size=2
expect "the same losses" close_losses cp1 cp 1e-4
ends "adapters of embeddings" 0 train 2 lora-embed model.path=tests/data/embed/start lora.r=2 batch.micro_batch_size=1 lora.dropout=0.1 data.validation="$tmp/texts.h5"
train 1 lora-whole model.path=tests/data/embed/start lora.r=2 batch.micro_batch_size=6 lora.dropout=0.1
expect "the pass without gradients has the same dropout: the losses of whole steps" close_losses lora-whole lora-embed 1e-5
expect "with the names of a model without a head" grep -q '"layers.0.self_attn.q_proj"' "$tmp/lora-embed/adapter/adapter_config.json"
ends "are read again" 0 run 2 ./dtrain "$tmp/tiny.ini" run.task=eval model.path=tests/data/embed/start lora.path="$tmp/lora-embed/adapter" data.train= \
    data.validation="$tmp/texts.h5" log.report_to=stdout
expect_text "and give the same" "validation_ndcg@10 $(number lora-embed embed/validation_ndcg@10 | tail -1 | cut -c1-6)"
ends "a wrong length" 64 train 1 lengths model.path=tests/data/embed/start embed.matryoshka_dims=17
expect_text "is refused by key" 'matryoshka_dims: expected lengths from 1 to hidden_size = 16, found 17'
ends "a length that is no number" 64 train 1 lengths model.path=tests/data/embed/start embed.matryoshka_dims=8x
expect_text "is refused" 'matryoshka_dims: expected lengths from 1 to hidden_size = 16, found 8x'
ends "a weight that is no number" 64 train 1 lengths model.path=tests/data/embed/start embed.matryoshka_dims=8 embed.matryoshka_weights=one
expect_text "is refused, too" 'matryoshka_weights: expected numbers from 0, found one'

make_task classify run.max_steps=6 data.train="$tmp/single.h5" data.shuffle=false batch.train_batch_size=6
expect "the loss of each first step of classifiers, to 1e-6" agree classify
keys=(model.path=tests/data/classify/words data.train="$tmp/tokens.h5" data.validation="$tmp/tokens.h5" data.validation_steps=2)
for layout in "1 0" "2 2" "3 3 zero.offload_optimizer=cpu" "2 1 data.prefetch=0"; do
    set -- $layout
    bits "$1" "words$1$2" "${keys[@]}" zero.stage="$2" "${@:3}"
    expect "words: the same bits on $1 ranks at stage $2" same_model "$(newest words10)" "$(newest "words$1$2")"
    is "the same F1" "$(number words10 classify/validation_f1_macro)" "$(number "words$1$2" classify/validation_f1_macro)"
done
bits 2 half "${keys[@]}" run.max_steps=2
bits 3 half "${keys[@]}" zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks: the same bits" same_model "$(newest words10)" "$(newest half)"
for case in "sequence single 0.183908046 0.347826087" "sequence multi 0.483615648 0.5" "words tokens 0.186513087 0.215909091"; do
    set -- $case
    ends "$2 without training" 0 measure "classify/$1" "$2"
    near "F1 of scikit-learn, macro" "$(number measured classify/validation_f1_macro)" "$3" 1e-6
    near "and micro" "$(number measured classify/validation_f1_micro)" "$4" 1e-6
done
ends "a new head learns" 0 train 2 labels run.max_steps=40 data.validation="$tmp/single.h5" log.report_to="stdout, jsonl" checkpoint.export=hf model.tokenizer=bytes
expect "the labels of the data" above labels classify/validation_f1_macro 0.95
expect "planned is allocated" as_planned
expect_text "a table ends the run" 'neutral +[0-9]+ +[0-9]+ +[0-9]+$'
expect "labels by name in the export" grep -q '"1": "neutral"' "$tmp/labels/hf/config.json"
fails_alone 1 task.classify 1 train 2 alone data.validation="$tmp/single.h5"
ends "in bf16" 0 train 2 bf16 precision.dtype=bf16 zero.stage=2
for lora in single tokens; do
    start=model.path=tests/data/classify/sequence; [ $lora = single ] || start=model.path=tests/data/classify/words
    ends "adapters of $lora" 0 train 2 "lora-$lora" $start data.train="$tmp/$lora.h5" lora.r=2 zero.stage=3
    expect "with the score, as PEFT stores it" grep -q '"score"' "$tmp/lora-$lora/adapter/adapter_config.json"
done
for words in single tokens; do
    wide=(model.path= model.model_type=qwen2 model.hidden_size=16 model.intermediate_size=32 model.num_hidden_layers=2 model.num_attention_heads=4
        model.num_key_value_heads=2 model.vocab_size=258 model.max_position_embeddings=64 data.train="$tmp/$words.h5")
    ends "two ranks of a matrix, $words" 0 train 2 "tp-$words" mesh.tp=2 "${wide[@]}"
    train 1 "tp1-$words" "${wide[@]}"
    expect "the same losses" close_losses "tp1-$words" "tp-$words" 1e-4
done
ends "the export is evaluated" 0 run 3 ./dtrain "$tmp/tiny.ini" run.task=eval model.path="$tmp/labels/hf" data.train= data.validation="$tmp/single.h5" log.report_to=stdout
expect_text "with the same F1 on other ranks" "validation_f1_macro $(number labels classify/validation_f1_macro | tail -1 | cut -c1-6)"
ends "and the best by F1 is kept" 0 train 1 best run.max_steps=8 data.validation="$tmp/single.h5" data.validation_steps=2 checkpoint.save_steps=2 \
    checkpoint.load_best_model_at_end=true checkpoint.metric_for_best_model=validation_f1_macro
ends "texts are labelled" 0 run 2 ./dtrain-generate --score "$tmp/labels/hf" --answers tests/data/classify/single.jsonl
is "a line each" "$(grep -cE '^(neg|neutral|pos)$' "$out")" 23
sed 's/"label": "pos"/"label": "other"/' tests/data/classify/single.jsonl >"$tmp/other.jsonl"
data --kind labels -o "$tmp/other.h5" "$tmp/other.jsonl"
ends "a label that the model does not have" 65 train 1 other model.path=tests/data/classify/sequence data.train="$tmp/other.h5"
expect_text "is named with its sample" 'other\.h5: sample [0-9]+: label other is not one of the 3 labels'
ends "labels of words for a text" 65 train 1 kinds data.train="$tmp/tokens.h5" classify.problem=single_label
expect_text "are refused" 'expected one label of a text, for problem = single_label'
ends "another kind" 65 train 1 kind data.train="$tmp/texts.h5"
expect_text "is refused" 'kind texts: expected labels'
e2e_done

#!/bin/bash
# e2e_tokenizer_files.sh - a special token that tokenizer_config.json names but no file gives an id: its id in texts exceeds the rows of the
# model. Data without it still fits the model. Data with it is refused with the remedy, and dtrain-convert --add-tokens adds the rows.
# A directory with only a tokenizer.model is exported with a tokenizer.json that gives the same ids.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
mkdir "$tmp/m"
cp tests/data/tokenizer/gpt2/tokenizer.json "$tmp/m"
n=$(python3 -c 'import json, sys; t = json.load(open(sys.argv[1])); print(max([*t["model"]["vocab"].values(), *(a["id"] for a in t["added_tokens"])]) + 1)' "$tmp/m/tokenizer.json")
echo '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "eos_token": "<|endoftext|>"}' >"$tmp/m/tokenizer_config.json"
vocab_of() { ./dtrain-info "$1" | awk '$1 == "vocab_size" { print $2 }'; }
make() { # NAME TOKENIZER TEXT
    echo "$3" >"$tmp/$1.txt"
    ./dtrain-data -o "$tmp/$1.h5" --tokenizer "$2" --documents lines "$tmp/$1.txt" >"$out" 2>&1 || not_ok "data $1" "failed"
}
keys="run.task=pretrain run.threads=1 run.max_steps=1 data.seq_len=8 batch.train_batch_size=1 precision.dtype=fp32 log.report_to= checkpoint.save_steps=0"
pretrain() { # DIR DATA ARGS...
    local dir=$1 data=$2
    shift 2
    run 1 ./dtrain /dev/stdin $keys run.output_dir="$tmp/$dir" data.train="$tmp/$data.h5" "$@"
}
shape="model.model_type=llama model.hidden_size=8 model.intermediate_size=8 model.num_hidden_layers=1 model.num_attention_heads=1 model.max_position_embeddings=16"
make plain "$tmp/m" "some words and more of them, until there are enough"
make padded "$tmp/m" "some words[PAD]and more of them, until there are enough"
is "a dataset without the token has the sizes of tokenizer.json" "$(vocab_of "$tmp/plain.h5")" "$n"
is "a dataset with the token has one more" "$(vocab_of "$tmp/padded.h5")" "$((n + 1))"
ends "the model without the row trains on the one" 0 pretrain base plain $shape model.vocab_size=$n model.tokenizer="$tmp/m" checkpoint.export=hf
expect "the export has the files that name the token" cmp "$tmp/base/hf/tokenizer_config.json" "$tmp/m/tokenizer_config.json"
ends "data with the token is refused" 65 pretrain other padded model.path="$tmp/base/hf"
expect_text "the message names the remedy" "vocab_size: the dataset was created with $((n + 1)), but the model has $n, without rows for the last tokens.*--add-tokens"
printf '[PAD]\n' >"$tmp/list.txt"
ends "dtrain-convert --add-tokens adds the row" 0 run 2 ./dtrain-convert --add-tokens "$tmp/list.txt" "$tmp/base/hf" "$tmp/grown"
expect "vocab_size equals the number of tokens" grep -q "\"vocab_size\": $((n + 1))" "$tmp/grown/config.json"
make again "$tmp/grown" "some words[PAD]and more of them, until there are enough"
expect "the ids are the same" cmp <(./dtrain-data show --tokenizer bytes "$tmp/again.h5" 0 2>&1 | tail -n +2) <(./dtrain-data show --tokenizer bytes "$tmp/padded.h5" 0 2>&1 | tail -n +2)
ends "training with the added rows" 0 pretrain grown-run again model.path="$tmp/grown"

mkdir "$tmp/spm"
spm() { python3 -c 'import base64, json, sys; open(sys.argv[2], "wb").write(base64.b64decode(json.load(open("tests/data/tokenizer/spm.json"))["models"][sys.argv[1]]))' "$1" "$2"; }
spm user "$tmp/spm/tokenizer.model"
echo '{"tokenizer_class": "PreTrainedTokenizer", "auto_map": {"AutoTokenizer": ["a.B", null]}, "add_bos_token": true}' >"$tmp/spm/tokenizer_config.json"
text="the model reads the <tool> text  of the files"
make spm "$tmp/spm" "$text"
make file "$tmp/spm/tokenizer.model" "$text"
expect "a tokenizer.model by its name" cmp "$tmp/spm.h5" "$tmp/file.h5"
ends "training with a tokenizer.model" 0 pretrain spm-run spm $shape model.vocab_size="$(vocab_of "$tmp/spm.h5")" model.tokenizer="$tmp/spm" checkpoint.export=hf
make exported "$tmp/spm-run/hf" "$text"
expect "the export has a tokenizer.json with the same ids" cmp "$tmp/spm.h5" "$tmp/exported.h5"
expect "and names its tokens, no code" python3 -c 'import json, sys; c = json.load(open(sys.argv[1])); assert (c["bos_token"], c["eos_token"], c["auto_map"]) == ("<s>", "</s>", {})' "$tmp/spm-run/hf/tokenizer_config.json"
ends "dtrain-convert --add-tokens" 0 run 1 ./dtrain-convert --add-tokens "$tmp/list.txt" --tokenizer "$tmp/spm" "$tmp/spm-run/hf" "$tmp/spm-grown"
make grown "$tmp/spm-grown" "$text[PAD]"
is "adds one token" "$(vocab_of "$tmp/grown.h5")" "$(($(vocab_of "$tmp/spm.h5") + 1))"
head -c 3000 "$tmp/spm/tokenizer.model" >"$tmp/short.model"
ends_saying "a truncated file" 65 'short.model: expected a SentencePiece model, found an invalid field at byte' run 0 ./dtrain-data -o "$tmp/no.h5" --tokenizer "$tmp/short.model" "$tmp/spm.txt"
echo 'IQ== 0' >"$tmp/ranks.model"
ends_saying "ranks of tiktoken" 65 'found ranks of tiktoken, which are not read' run 0 ./dtrain-data -o "$tmp/no.h5" --tokenizer "$tmp/ranks.model" "$tmp/spm.txt"
e2e_done

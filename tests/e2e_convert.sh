#!/bin/bash
# e2e_convert.sh - import and export of Hugging Face directories: training from one, export at the end of a run, dtrain-convert in both
# directions, and errors.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
hf=tests/data/hf

# bit for bit, on any ranks
for case in "gpt2 1 2" "llama 3 1" "qwen3_f16 2 3" "mistral_bf16 1 1"; do
    read -r name np back <<<"$case"
    ends "$name to a checkpoint on $np ranks" 0 run "$np" ./dtrain-convert "$hf/$name" "$tmp/$name.h5"
    run "$back" ./dtrain-convert "$tmp/$name.h5" "$tmp/$name"
    expect "$name back on $back ranks has the same bytes" cmp "$tmp/$name/model.safetensors" "$hf/$name/model.safetensors"
done
prints "a bf16 directory becomes a bf16 checkpoint" 'bf16' run 0 ./dtrain-info "$tmp/mistral_bf16.h5"
run 2 ./dtrain-convert "$hf/llama_sharded" "$tmp/sharded-run"
expect "a name without .h5 is a folder of checkpoints" test -s "$tmp/sharded-run/step-00000000.h5" -a -s "$tmp/sharded-run/latest"
run 2 ./dtrain-convert "$tmp/sharded-run" "$tmp/one" --shard-size 1TB
expect "shards become one file" cmp "$tmp/one/model.safetensors" "$hf/llama/model.safetensors"
run 2 ./dtrain-convert --to hf --shard-size 20KB "$hf/llama" "$tmp/many"
expect "a directory is cut into shards" test -s "$tmp/many/model.safetensors.index.json" -a -s "$tmp/many/model-00001-of-00003.safetensors"
run 2 ./dtrain-convert --to hf "$tmp/many" "$tmp/again"
expect "shards are joined" cmp "$tmp/again/model.safetensors" "$hf/llama/model.safetensors"
run 2 ./dtrain-convert --to hf "$hf/qwen3_f16" "$tmp/same" --tokenizer bytes
expect "generation_config.json goes along" cmp "$tmp/same/generation_config.json" "$hf/qwen3_f16/generation_config.json"
for type in fp32 bf16; do run 0 ./dtrain-convert --to hf --dtype $type --shard-size 1B "$hf/llama" "$tmp/mixed-$type"; done # a tensor a file
for shard in "$tmp"/mixed-bf16/model-00001-*; do cp "$shard" "$tmp/mixed-fp32/"; done
sed -i 's/"float32"/"float16"/' "$tmp/mixed-fp32/config.json"
run 2 ./dtrain-convert --to hf "$tmp/mixed-fp32" "$tmp/mixed"
expect "weights of mixed types are exported in the widest type" grep -q '"dtype": "float32"' "$tmp/mixed/config.json"
run 2 ./dtrain-convert "$tmp/mixed-fp32" "$tmp/mixed.h5"
run 0 ./dtrain-convert "$tmp/mixed.h5" "$tmp/mixed-back"
expect "mixed types are kept through a checkpoint" cmp "$tmp/mixed-back/model.safetensors" "$tmp/mixed/model.safetensors"
run 0 ./dtrain-convert "$tmp/gpt2.h5" "$tmp/half" --dtype bf16
expect "another type is half as large" test "$(stat -c %s "$tmp/half/model.safetensors")" -lt "$(($(stat -c %s "$hf/gpt2/model.safetensors") * 6 / 10))"
expect "config.json names the data type" grep -q '"dtype": "bfloat16"' "$tmp/half/config.json"
expect "and GPT-2's context as published, for llama.cpp" grep -q '"n_ctx": 32' "$tmp/half/config.json"
run 0 ./dtrain-convert --to hf "$hf/deepseek_v3" "$tmp/v3"
expect "and how DeepSeek-V3's router scores" grep -q '"scoring_func": "sigmoid"' "$tmp/v3/config.json"
cp -r "$hf/qwen3_5" "$tmp/predicts" && sed -i '2i \  "mtp_num_hidden_layers": 1,' "$tmp/predicts/config.json"
run 0 ./dtrain-convert --to hf "$tmp/predicts" "$tmp/predicts-not"
expect "layers of multi-token prediction are not promised" grep -q '"mtp_num_hidden_layers": 0' "$tmp/predicts-not/config.json"

# a run: from a directory, to a directory
run 0 ./dtrain-data --documents lines -o "$tmp/small.h5" "$tmp/valid.txt"
ends "a run that exports" 0 train 2 base run.max_steps=3 zero.stage=3 checkpoint.export=hf
expect "the export has what transformers asks for" test -s "$tmp/base/hf/config.json" -a -s "$tmp/base/hf/model.safetensors" -a -s "$tmp/base/hf/tokenizer.json" -a -s "$tmp/base/hf/tokenizer_config.json"
run 3 ./dtrain-convert "$tmp/base" "$tmp/converted"
expect "dtrain-convert makes the same of its checkpoint" diff -r "$tmp/base/hf" "$tmp/converted"
sed -i '2i \  "model_max_length": 1000000000000000019884624838656,' "$tmp/base/hf/tokenizer_config.json" # as transformers writes it
run 0 ./dtrain-data --documents lines --tokenizer "$tmp/base/hf" -o "$tmp/by-export.h5" "$tmp/text.txt"
expect_exit "dtrain-data reads a tokenizer_config.json without a length" 0
expect "dtrain-info names the tokenizer of bytes" grep -q "tokenizer *bytes" <(./dtrain-info "$tmp/by-export.h5")
expect "both tokenizers give the same ids" h5diff "$tmp/by-export.h5" "$tmp/train.h5" /tokens /tokens
: >"$tmp/warnings"
for data in train by-export; do
    for from in "model.path=$tmp/base" "model.path=$tmp/base/hf" "model.tokenizer=$tmp/base/hf" "model.tokenizer=$tmp/base/hf/tokenizer.json" "model.tokenizer=bytes"; do
        run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/combined" data.train="$tmp/$data.h5" data.validation="$tmp/valid.h5" "$from"
        grep -i "other text\|different tokenizers" "$out" >>"$tmp/warnings"
    done
done
run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/combined" data.train="$tmp/train.h5,$tmp/by-export.h5" model.path="$tmp/base/hf"
grep -i "other text\|different tokenizers" "$out" >>"$tmp/warnings"
expect "no warning that ids mean other text, whichever of the two names it" test "$code" = 0 -a ! -s "$tmp/warnings"
run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/combined" model.tokenizer=tests/data/tokenizer/gpt2
expect_text "another tokenizer is warned of" "the same ids stand for other text"
run 0 ./dtrain-data --documents lines --tokenizer tests/data/tokenizer/gpt2 -o "$tmp/by-gpt2.h5" "$tmp/text.txt"
run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/combined" data.train="$tmp/by-gpt2.h5" data.validation= model.vocab_size=800 model.tokenizer=bytes
expect_text "the tokenizer of bytes is named once" "but the model's tokenizer is bytes, so the same ids stand for other text"
ends "dtrain-generate, too" 0 run 0 ./dtrain-generate "$tmp/base/hf" --prompt x --greedy --max-new-tokens 2
ends "dtrain-convert reads the export" 0 run 0 ./dtrain-convert "$tmp/base/hf" "$tmp/with-length.h5"
ends "a run that starts from an export" 0 train 3 tuned model.path="$tmp/base/hf" run.max_steps=3 zero.stage=1 optimizer.lr=1e-3 checkpoint.export=hf
train 2 tuned2 model.path="$tmp/base" run.max_steps=3 zero.stage=3 optimizer.lr=1e-3
expect "is the run that starts from the checkpoint" close_losses tuned tuned2 1e-5
expect "a checkpoint remembers the tokenizer" grep -q "^tokenizer = $(realpath "$tmp/base/hf")" "$tmp/tuned/config.ini"
expect "the next export copies the tokenizer files" cmp "$tmp/tuned/hf/tokenizer.json" "$tmp/base/hf/tokenizer.json"
run 2 ./dtrain "$tmp/tiny.ini" run.task=eval model.path="$tmp/base/hf" data.validation="$tmp/small.h5" zero.stage=3 log.report_to=stdout
expect_text "an export is evaluated" 'validation'
prints "an export is sampled from" '97 98 [0-9]+' run 2 ./dtrain-generate "$tmp/base/hf" --tokenizer ids --prompt "97 98" --greedy --max-new-tokens 4 --zero-stage 3
for model in base base/hf; do ./dtrain-generate "$tmp/$model" --prompt "the é" --greedy --max-new-tokens 6 >"$tmp/text$(basename $model)" 2>/dev/null </dev/null; done
expect "with its own tokenizer it writes what the checkpoint writes" test -s "$tmp/textbase" -a "$(cat "$tmp/textbase")" = "$(cat "$tmp/texthf")"
prints "an export is planned for" 'model: [0-9]+ parameters' run 0 ./dtrain --plan --ranks 4 "$tmp/tiny.ini" model.path="$tmp/base/hf" run.output_dir="$tmp/x"
ends "--check with a directory and no data" 65 run 2 ./dtrain --check "$tmp/tiny.ini" model.path="$hf/llama" data.train="$tmp/none.h5" run.output_dir="$tmp/x"
DTRAIN_FAULT=step.begin:1:2:signal train 2 stopped checkpoint.export=hf
expect "a run that was stopped does not export" test "$code" = 75 -a ! -e "$tmp/stopped/hf"

# the chat template goes from the data to the checkpoint to the conversation
echo '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}' >"$tmp/chat.jsonl"
echo '{"name": "mine #1; $", "user": {"prefix": "Q: ", "after": "\n"}, "assistant": {"prefix": "A: #; ${x}", "end": "\n"}}' >"$tmp/mine.json"
run 0 ./dtrain-data --template chatml -o "$tmp/chatml.h5" "$tmp/chat.jsonl"
run 0 ./dtrain-data --template "$tmp/mine.json" -o "$tmp/mine.h5" "$tmp/chat.jsonl"
prints "a dataset names its template" '^template +chatml$' run 0 ./dtrain-data info "$tmp/chatml.h5"
prints "dtrain-info shows it, too" '^ +template +chatml$' run 0 ./dtrain-info "$tmp/chatml.h5"
for name in chatml mine; do
    train 2 "talk-$name" run.task=sft run.max_steps=1 data.train="$tmp/$name.h5" data.packing=none data.seq_len=64 model.max_position_embeddings=512 checkpoint.export=hf
    expect_text "after training on chats ($name) the next step is one" '^next: dtrain-generate .* --chat'
    run 0 ./dtrain-generate "$tmp/talk-$name" --chat --prompt hi --greedy --max-new-tokens 2 --threads 1
    expect_text "a checkpoint's conversation is in its template ($name)" "chat template: $name"
    expect "the export has it for transformers ($name)" grep -q "add_generation_prompt" "$tmp/talk-$name/hf/chat_template.jinja"
    run 0 ./dtrain-generate "$tmp/talk-$name/hf" --chat --prompt hi --greedy --max-new-tokens 2 --threads 1
    expect_text "dtrain-generate uses the exported template ($name)" "chat template: $name"
    run 0 ./dtrain-convert "$tmp/talk-$name" "$tmp/talked-$name"
    expect "dtrain-convert writes the same ($name)" diff -r "$tmp/talk-$name/hf" "$tmp/talked-$name"
done
run 0 ./dtrain-generate "$tmp/talk-chatml" --chat --prompt hi --chat-template plain --greedy --max-new-tokens 2 --threads 1
expect_text "another one can be asked for" "chat template: plain"
expect_text "a warning names both templates" "warn.*--chat-template: the model was trained with the template chatml, not with plain"
run 0 ./dtrain-generate "$tmp/talk-chatml/hf" --chat --prompt hi --chat-template llama-3 --greedy --max-new-tokens 2 --threads 1
expect_text "an exported directory gives the same warning" "warn.*--chat-template: the model was trained with the template chatml, not with llama-3"
expect_text "a warning names the tokens that the tokenizer lacks" 'template llama-3: the tokenizer lacks <\|start_header_id\|>, <\|end_header_id\|>, <\|eot_id\|>: each'
run 0 ./dtrain-generate "$tmp/talk-chatml/hf" --chat --prompt hi --chat-template chatml --greedy --max-new-tokens 2 --threads 1
expect "the trained template causes no warning" sh -c "! grep -q 'was trained with' '$out'"
run 0 ./dtrain-convert --chat-template plain "$tmp/talk-chatml" "$tmp/plain"
expect "dtrain-convert --chat-template writes the template" grep -q "^{#- Written by dtrain. chat_template = plain #}$" "$tmp/plain/chat_template.jinja"
sed -i '1s/ /  /' "$tmp/talk-chatml/hf/chat_template.jinja"
run 0 ./dtrain-data --force -o "$tmp/edited.h5" --tokenizer "$tmp/talk-chatml/hf" "$tmp/chat.jsonl"
expect_text "a template with an edited blank is reported" "changed after dtrain wrote it"
expect_text "the edited template is evaluated" "^chat template: $tmp/talk-chatml/hf/chat_template.jinja$"
mkdir "$tmp/published"
cp "$tmp/talk-chatml/hf/tokenizer.json" "$tmp/published"
# shellcheck disable=SC2016
echo '{"eos_token": "<|endoftext|>", "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"}' >"$tmp/published/tokenizer_config.json"
# as long as the longest published templates
awk '{ while (length(pad) < 30000) pad = pad "{#- a macro for tools #}"; sub(/"chat_template": "/, "&" pad); print }' \
    "$tmp/published/tokenizer_config.json" >"$tmp/long.json" && mv "$tmp/long.json" "$tmp/published/tokenizer_config.json"
run 0 ./dtrain-data -o "$tmp/own.h5" --tokenizer "$tmp/published" "$tmp/chat.jsonl"
train 2 talk-own run.task=sft run.max_steps=1 data.train="$tmp/own.h5" data.packing=none data.seq_len=64 model.max_position_embeddings=512 checkpoint.export=hf model.tokenizer="$tmp/published" model.vocab_size=600
expect "the tokenizer's own template goes from the data to the checkpoint" grep -q '^chat_template = {"jinja":' "$tmp/talk-own/config.ini"
run 0 ./dtrain-generate "$tmp/talk-own" --chat --prompt hi --greedy --max-new-tokens 2 --threads 1
expect_text "a checkpoint's conversation is in it" "chat template: the model's own, recorded in training"
run 0 ./dtrain-convert "$tmp/talk-own" "$tmp/own"
expect "an export keeps it" test ! -e "$tmp/own/chat_template.jinja" -a ! -e "$tmp/talk-own/hf/chat_template.jinja"
expect "its file is unchanged" cmp "$tmp/own/tokenizer_config.json" "$tmp/published/tokenizer_config.json"
run 0 ./dtrain-convert --tokenizer "$tmp/published" "$tmp/talk-mine" "$tmp/other"
expect "another one is replaced" test -s "$tmp/other/chat_template.jinja"

full_only

# mistakes
ends "help" 0 run 0 ./dtrain-convert --help
wrong "no names" 64 'expected FROM and TO' ./dtrain-convert
wrong "a directory that is not empty" 64 'not empty.*--force' ./dtrain-convert "$tmp/gpt2.h5" "$tmp/half"
wrong "a checkpoint that exists" 64 'exists.*--force' ./dtrain-convert "$hf/gpt2" "$tmp/llama.h5"
run 2 ./dtrain-convert "$tmp/gpt2.h5" "$tmp/half" --force
expect "--force replaces" cmp "$tmp/half/model.safetensors" "$hf/gpt2/model.safetensors"
wrong "a template without a tokenizer" 64 '--chat-template needs' ./dtrain-convert --to hf --tokenizer none --chat-template plain "$hf/gpt2" "$tmp/x"
wrong "an unknown template" 64 'llama-3' ./dtrain-convert --tokenizer bytes --chat-template llama3 "$tmp/gpt2.h5" "$tmp/x"
wrong "an unknown type" 64 'dtype.*int4' ./dtrain-convert "$hf/gpt2" "$tmp/x.h5" --dtype int4
wrong "a checkpoint in fp16" 64 'fp16' ./dtrain-convert "$hf/gpt2" "$tmp/x.h5" --dtype fp16
run 0 ./dtrain-convert --to hf --shard-size 20KiB "$hf/llama" "$tmp/binary"
run 0 ./dtrain-convert --to hf --shard-size 20480 "$hf/llama" "$tmp/in-bytes"
expect "a unit of 1024" diff -r "$tmp/binary" "$tmp/in-bytes"
wrong "a size that is none" 64 'shard-size.*many' ./dtrain-convert "$hf/gpt2" "$tmp/x" --to hf --shard-size many
wrong "nothing there" 65 'nowhere' ./dtrain-convert "$tmp/nowhere" "$tmp/x.h5"
wrong "no such tokenizer" 65 'nowhere' ./dtrain-convert "$tmp/gpt2.h5" "$tmp/x" --tokenizer "$tmp/nowhere"
wrong "a dataset is no model" 65 'dtrain-checkpoint' ./dtrain-convert "$tmp/train.h5" "$tmp/x"
wrong "a missing tokenizer, before any step" 65 'model.*tokenizer.*nowhere' ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/x" model.tokenizer="$tmp/nowhere"
mkdir "$tmp/pickle" && cp "$hf/gpt2/config.json" "$tmp/pickle" && touch "$tmp/pickle/pytorch_model.bin"
wrong "pickled weights" 65 'pytorch_model.bin.*safetensors' ./dtrain-convert "$tmp/pickle" "$tmp/x.h5"
cp -r "$hf/llama" "$tmp/cut" && truncate -s -4 "$tmp/cut/model.safetensors"
wrong "weights that were cut short" 65 'model.safetensors.*tensor.*cut short' ./dtrain-convert "$tmp/cut" "$tmp/x.h5"
cp -r "$hf/llama_sharded" "$tmp/lost" && rm "$tmp/lost/model-00002-of-00003.safetensors"
wrong "a shard that is missing" 65 'model-00002-of-00003.safetensors' ./dtrain-convert "$tmp/lost" "$tmp/x.h5"
sed 's/"vocab_size": 61/"vocab_size": 62/' "$hf/llama/config.json" >"$tmp/cut/config.json" && cp "$hf/llama/model.safetensors" "$tmp/cut"
wrong "a configuration of another model" 65 'embed_tokens.weight.*\[62, 20\].*\[61, 20\]' ./dtrain-convert "$tmp/cut" "$tmp/x.h5"
expect "nothing was made of any of them" test ! -e "$tmp/x" -a ! -e "$tmp/x.h5"

# a limit of file sizes, a full disk
train 2 large run.max_steps=1 model.hidden_size=256 model.intermediate_size=1024 checkpoint.export=hf # 8 MB; MPI itself needs some
for to in limited limited.h5; do
    ends "no room below the limit of file sizes for $to" 74 run 0 bash -c "ulimit -f 5000; exec ./dtrain-convert '$tmp/large$([ $to = limited ] || echo /hf)' '$tmp/$to'"
    expect "nothing is left of $to" test ! -e "$tmp/$to" -a ! -e "$tmp/$to.part"
done
mkdir "$tmp/small"
if mount -t tmpfs -o size=200k tmpfs "$tmp/small" 2>/dev/null; then
    wrong "no room for an export" 74 'no room|space' ./dtrain-convert "$tmp/base" "$tmp/small/out" --dtype fp32 --shard-size 50KB
    expect "leaves nothing" test -z "$(ls -A "$tmp/small")"
    run 2 ./dtrain "$tmp/tiny.ini" run.max_steps=1 run.output_dir="$tmp/full" checkpoint.export=hf
    ln -sfn "$tmp/small" "$tmp/link" && rm -rf "$tmp/full/hf" && ln -s "$tmp/small" "$tmp/full/hf" && fallocate -l 120k "$tmp/small/balloon"
    ends "no room for the export of a run" 74 run 2 ./dtrain "$tmp/tiny.ini" run.max_steps=2 run.output_dir="$tmp/full" checkpoint.export=hf
    expect "the checkpoint of the run exists" test -s "$tmp/full/checkpoints/step-00000002.h5"
    umount "$tmp/small"
else
    skip "no room for an export" "mounting a small tmpfs is not permitted here"
fi
# a rank that does not come is given up, wherever it is waited for
while read -r point from to; do
    export DTRAIN_FAULT=$point:1:1:hang
    run 2 ./dtrain-convert --to "$to" --tokenizer bytes --timeout 1 "$from" "$tmp/given-up-$point"
    unset DTRAIN_FAULT
    expect_exit "a rank that hangs at $point is given up" 76
    expect_text "the others say where they are, at $point" 'rank 0 .*no progress for [0-9]+ s .*phase [a-z]+'
done <<POINTS
comm.devices $hf/llama hf
load.read $tmp/gpt2.h5 hf
save.write $hf/gpt2 checkpoint
export.write $hf/gpt2 hf
POINTS
ends "no time at all is refused" 64 run 2 ./dtrain-convert --timeout 0 "$hf/gpt2" "$tmp/never.h5"
expect_text "by name" "--timeout: expected a number from 1 to 1e.09, found '0'"
# two at a time
DTRAIN_FAULT=export.publish:0:1:stop ./dtrain-convert --to hf --tokenizer bytes "$hf/llama" "$tmp/both" >"$tmp/first" 2>&1 &
wait_for grep -q '^State:.T' /proc/$!/status
ends "a directory that another process writes" 74 run 0 ./dtrain-convert --to hf --shard-size 20KB --tokenizer bytes --force "$hf/gpt2" "$tmp/both"
expect_text "is named" 'both/config.json.part: another process is writing this output'
kill -CONT $! && wait $!
is "the first writer completes its model" "$? $(cd "$tmp/both" && echo *) $(cmp "$tmp/both/model.safetensors" "$hf/llama/model.safetensors" && echo same)" \
    "0 config.json model.safetensors tokenizer.json tokenizer_config.json same"

# the example of the README, in small
ends "chats fine-tune a directory into another" 0 run 0 env RUNS="$tmp/example" SETTINGS=run.max_steps=4 PYTHON=false tools/chat.sh
expect "the exported model and the data are complete" test -s "$tmp/example/chat/hf/model.safetensors" -a -s "$tmp/example/chat/hf/tokenizer.json" -a -s "$tmp/example/chat-data/answer.jsonl"

e2e_done

#!/bin/bash
# e2e_rec_vocabulary.sh - a vocabulary grows by a recommender's level tokens, and only their rows are trained. The rows match PyTorch's on
# any layout, and everything else keeps its bits. Also: a search for the best model that ends early, on 1, 2 and 8 ranks.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/rec/vocabulary
first=257 # id of the first level token: the bytes and their end are before it. The models have a row that no token had, 257
rows() { python3 tests/vocabulary_rows.py "$@"; }

for name in llama gpt2; do
    from=tests/data/lora/gpt2
    [ $name = gpt2 ] || from=tests/data/dpo/start
    run 2 ./dtrain-convert --to hf --tokenizer bytes $from "$tmp/small-$name"
    run 1 ./dtrain-convert --add-tokens $fixture/index.json "$tmp/small-$name" "$tmp/$name"
    expect_text "the vocabulary of $name grows" '9 tokens, 9 of them new, with ids starting at 257'
    expect "old rows are unchanged" rows same "$tmp/small-$name" "$tmp/$name" $first
    expect "new rows are the mean of the old ones" rows like "$tmp/$name" $first $fixture/rows.txt $name 0
    [ $name = gpt2 ] || expect_text "padding gives its id to a token" 'pad_token_id = 257 is removed, because a new token uses this id'
    expect "$name has no pad_token_id" grep -q '"pad_token_id": null' "$tmp/$name/config.json"
    expect "config.json has the number of rows" grep -q '"vocab_size": 266' "$tmp/$name/config.json"
    run 3 ./dtrain-convert --add-tokens $fixture/info.txt "$tmp/small-$name" "$tmp/three-$name"
    expect "an info file on three ranks makes the same of $name" diff -r "$tmp/$name" "$tmp/three-$name"
done
run 2 ./dtrain-convert "$tmp/small-llama" "$tmp/small.h5"
run 2 ./dtrain-convert --add-tokens $fixture/index.json "$tmp/small.h5" "$tmp/of-checkpoint"
expect "a checkpoint converts to the same model" cmp "$tmp/llama/model.safetensors" "$tmp/of-checkpoint/model.safetensors"
run 2 ./dtrain-convert --add-tokens $fixture/index.json "$tmp/llama" "$tmp/once-more"
expect "existing tokens are not added again" diff -r "$tmp/llama" "$tmp/once-more"
run 2 ./dtrain-convert --dtype bf16 --shard-size 5KB --add-tokens $fixture/index.json "$tmp/small-llama" "$tmp/shards"
run 1 ./dtrain-convert --dtype bf16 --to hf "$tmp/llama" "$tmp/llama-bf16"
run 1 ./dtrain-convert --to hf "$tmp/shards" "$tmp/of-shards"
expect "in bf16 and in shards: the mean is rounded once" cmp "$tmp/llama-bf16/model.safetensors" "$tmp/of-shards/model.safetensors"
echo '<only_one>' >"$tmp/one.txt"
run 1 ./dtrain-convert --add-tokens "$tmp/one.txt" "$tmp/small-llama" "$tmp/one"
expect "a matrix that has room is not made smaller or larger" grep -q '"vocab_size": 258' "$tmp/one/config.json"
run 1 ./dtrain-convert --noise 1e-9 --add-tokens $fixture/index.json "$tmp/small-llama" "$tmp/noise"
run 3 ./dtrain-convert --noise 1e-9 --add-tokens $fixture/index.json "$tmp/small-llama" "$tmp/noise3"
expect "noise is the same on three ranks" cmp "$tmp/noise/model.safetensors" "$tmp/noise3/model.safetensors"
expect "and small" rows like "$tmp/noise" $first $fixture/rows.txt llama 0
expect "new rows differ by it" rows differ "$tmp/noise" $first
expect "and not without it" sh -c "! python3 tests/vocabulary_rows.py differ '$tmp/llama' $first 2>/dev/null"
cp -r "$tmp/small-llama" "$tmp/nan"
python3 tests/poison.py "$tmp/nan/model.safetensors" model.embed_tokens.weight 0 nan
wrong "rows without a mean" 65 'embed_tokens.weight`: expected finite values, found NaN' ./dtrain-convert --add-tokens $fixture/index.json "$tmp/nan" "$tmp/x"
ends "the directory is sampled from" 0 run 0 ./dtrain-generate "$tmp/llama" --prompt '<a_3><b_0>x' --greedy --max-new-tokens 2

# ---- training of the new rows ----------------------------------------------------------------------------------------------------------------
./dtrain-data --tokenizer "$tmp/llama" -o "$tmp/sft.h5" $fixture/sft.jsonl >"$out" 2>&1 || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
frozen() { # NP DIR MODEL ARGS...
    local np=$1 dir=$2 model=$tmp/$3
    shift 3
    run "$np" ./dtrain /dev/stdin run.task=sft run.output_dir="$tmp/$dir" run.max_steps=10 run.threads=1 model.path="$model" data.train="$tmp/sft.h5" \
        data.seq_len=64 data.shuffle=false batch.train_batch_size=8 optimizer.lr=1e-2 optimizer.weight_decay=0.1 optimizer.betas="0.9, 0.999" \
        optimizer.eps=1e-8 optimizer.max_grad_norm=1 scheduler.type=constant log.report_to=jsonl checkpoint.save_steps=0 \
        rec.catalogue=$fixture/info.txt rec.freeze_llm=true "$@"
}
like_pytorch() { ten_steps_like "$1" < <(awk -v r="run $2" '/^run/ { mine = $0 == r; next } mine' $fixture/frozen.txt); } # DIR RUN
for name in llama gpt2; do
    frozen 1 "torch-$name" $name batch.micro_batch_size=2 checkpoint.export=hf
    expect "$name: PyTorch's steps" like_pytorch "torch-$name" $name
    expect "$name: PyTorch's rows" rows like "$tmp/torch-$name/hf" $first $fixture/rows.txt $name 1
    expect "$name: all else is the same to the bit" rows same "$tmp/$name" "$tmp/torch-$name/hf" $first
done
prints "how much is trained is said" '9 level tokens, ids 257 to 265: 288 of ' frozen 0 plan llama batch.micro_batch_size=1 run.max_steps=1
expect "frozen tensors have no moments" test "$(h5ls "$(newest plan)/optimizer/exp_avg" | grep -c Dataset)" = 2

bits="batch.micro_batch_size=1 run.reproducible=true run.max_steps=4"
for layout in "1 0 none none" "2 2 none none" "3 3 none none" "4 1 cpu none" "2 3 cpu cpu"; do
    set -- $layout
    for name in llama gpt2; do
        [ $name = llama ] || [ "$2" != 2 ] || continue
        frozen $1 "bits$1$3-$name" $name $bits batch.train_batch_size=12 zero.stage="$2" zero.offload_optimizer="$3" zero.offload_param="$4" checkpoint.export=hf
        expect "$name: the same bits on $1 ranks at stage $2, offload $3 and $4" same_model "$(newest bits1none-$name)" "$(newest "bits$1$3-$name")"
    done
    expect "planned memory is allocated" as_planned
done
frozen 2 halves llama $bits batch.train_batch_size=12 run.max_steps=2
frozen 3 halves llama $bits batch.train_batch_size=12 zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks at another stage: the same bits" same_model "$(newest bits1none-llama)" "$(newest halves)"
frozen 1 halves llama $bits batch.train_batch_size=12 rec.freeze_llm=false run.max_steps=5
expect_text "to train the rest as well is no continuation" "rec.freeze_llm: true -> false"
expect_exit "the settings are refused" 64
for dtype in bf16 fp16; do
    stage=$([ $dtype = bf16 ] && echo 3 || echo 1)
    frozen 2 $dtype llama batch.micro_batch_size=2 precision.dtype=$dtype zero.stage="$stage" run.max_steps=3
    run 0 ./dtrain-convert --dtype fp32 "$tmp/$dtype" "$tmp/$dtype-hf"
    expect "$dtype at stage $stage: old rows are what they were" rows same_tables "$tmp/llama" "$tmp/$dtype-hf" $first
done
sed 's/, "completion".*/}/' $fixture/sft.jsonl >"$tmp/prompts.jsonl"
./dtrain-data --tokenizer "$tmp/llama" -o "$tmp/prompts.h5" "$tmp/prompts.jsonl" >"$out" 2>&1
for stage in 0 3; do
    frozen 2 grpo$stage llama run.task=grpo data.train="$tmp/prompts.h5" batch.micro_batch_size=4 grpo.num_generations=4 grpo.max_completion_length=6 grpo.beta=0.1 \
        grpo.reward_funcs=length:3 run.max_steps=2 run.reproducible=true zero.stage=$stage checkpoint.export=hf
    expect "grpo at stage $stage: all but the rows of level tokens is the same to the bit" rows same "$tmp/llama" "$tmp/grpo$stage/hf" $first
done
expect "and these are the same at both" cmp "$tmp/grpo0/hf/model.safetensors" "$tmp/grpo3/hf/model.safetensors"
frozen 1 adapted llama rec.freeze_llm=false batch.micro_batch_size=8 run.max_steps=1 lora.r=2 lora.modules_to_save=embed_tokens,lm_head checkpoint.export=hf
run 2 ./dtrain-convert --adapter "$tmp/adapted/adapter" "$tmp/llama" "$tmp/merged"
expect "an adapter with a grown vocabulary is merged with the model that has grown" cmp "$tmp/adapted/hf/model.safetensors" "$tmp/merged/model.safetensors"
wrong "and not with one that has not" 65 'vocabulary of 266 tokens.*has 258.*--add-tokens' ./dtrain-convert --adapter "$tmp/adapted/adapter" "$tmp/small-llama" "$tmp/x"
wrong "nor does a model with adapters grow" 64 'add-tokens.*adapters.*first' ./dtrain-convert --adapter "$tmp/adapted/adapter" --add-tokens $fixture/index.json "$tmp/llama" "$tmp/x"

# ---- the best model, found on any number of ranks -------------------------------------------------------------------------------------------
head -8 $fixture/sft.jsonl >"$tmp/half.jsonl"
tail -8 $fixture/sft.jsonl >"$tmp/other.jsonl"
for half in half other; do ./dtrain-data --tokenizer "$tmp/llama" -o "$tmp/$half.h5" "$tmp/$half.jsonl" >"$out" 2>&1; done
for np in 1 2 8; do
    frozen $np best$np llama rec.freeze_llm=false batch.micro_batch_size=1 run.reproducible=true run.max_steps=20 optimizer.lr=3e-2 data.train="$tmp/half.h5" \
        data.validation="$tmp/other.h5" data.validation_steps=0.05 checkpoint.save_steps=0.05 checkpoint.save_total_limit=1 checkpoint.load_best_model_at_end=true run.early_stopping_patience=3 checkpoint.export=hf
    expect_text "$np ranks: ended early" 'early stopping at step [0-9]+ of 20: 3 validations did not improve'
done
expect "the same best model on 1, 2 and 8 ranks" cmp "$tmp/best1/hf/model.safetensors" "$tmp/best8/hf/model.safetensors"
expect "and on two" cmp "$tmp/best1/hf/model.safetensors" "$tmp/best2/hf/model.safetensors"
expect "found at the same step" cmp "$tmp/best1/checkpoints/best" "$tmp/best8/checkpoints/best"
ends "1,024 sequences a step do not divide among three ranks: 64" 64 frozen 3 remainder llama batch.train_batch_size=1024 batch.micro_batch_size=16
expect_text "and the nearest that do are named" '1008'

# ---- mistakes --------------------------------------------------------------------------------------------------------------------------------
wrong "tokens for a checkpoint" 64 'add-tokens: expected TO to be a directory' ./dtrain-convert --to checkpoint --add-tokens $fixture/index.json "$tmp/small-llama" "$tmp/x.h5"
wrong "tokens for a model without a tokenizer" 64 'add-tokens needs the model.s tokenizer' ./dtrain-convert --tokenizer none --add-tokens $fixture/index.json "$tmp/small-llama" "$tmp/x"
wrong "tokens for the built-in tokenizer" 64 'no files' ./dtrain-convert --tokenizer bytes --add-tokens $fixture/index.json "$tmp/small-llama" "$tmp/x"
wrong "noise on nothing" 64 'noise.*add-tokens' ./dtrain-convert --noise 0.1 "$tmp/small-llama" "$tmp/x"
wrong "a list that is not there" 65 'nowhere' ./dtrain-convert --add-tokens "$tmp/nowhere" "$tmp/small-llama" "$tmp/x"
wrong "a tokenizer of another model" 65 'embed_tokens.weight.*258 rows.*ids up to' ./dtrain-convert --tokenizer tests/data/tokenizer/qwen2 --add-tokens $fixture/index.json "$tmp/small-llama" "$tmp/x"
expect "nothing was made of any of them" test ! -e "$tmp/x" -a ! -e "$tmp/x.h5"
refused() { local name=$1 want=$2 text=$3; shift 3; frozen 2 refused "$@"; expect_exit "$name: $want" "$want"; expect_text "$name: says why" "$text"; }
refused "rows and adapters" 64 'freeze_llm.*expected lora.r = 0' llama lora.r=2
refused "no catalogue" 64 'freeze_llm.*needs rec.catalogue' llama rec.catalogue=
refused "a missing catalogue" 65 'rec.*catalogue.*nowhere' llama rec.catalogue="$tmp/nowhere"
refused "a model that has not grown" 65 '9 of 9 level tokens .the first is <a_12>. are missing from the tokenizer.*dtrain-convert --add-tokens' small-llama
refused "a tokenizer that has outgrown its model" 65 'ids up to 265.*vocab_size = 258' small-llama model.tokenizer="$tmp/llama"
e2e_done

#!/bin/bash
# e2e_rm.sh - reward models. Ten steps match TRL's RewardTrainer on any number of ranks and at any stage. Also: learning from pairs and from
# safety labels; import from a language model's directory and export; omitted records and errors.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/rm
make_data || exit 1
train 1 lm run.max_steps=2 model.max_position_embeddings=64 checkpoint.export=hf
make_task rm

# ---- against TRL ------------------------------------------------------------------------------------------------------------------------------
data -o "$tmp/pairs.h5" "$fixture/pairs.jsonl"
as_trl() { # NP DIR ARGS...
    train "$1" "$2" run.max_steps=10 model.path="$fixture/start" data.train="$tmp/pairs.h5" data.shuffle=false batch.train_batch_size=4 \
        rm.center_rewards_coefficient=0.01 "${@:3}"
}
export_fp32="checkpoint.export=hf checkpoint.export_dtype=fp32"
prints "a step shows the accuracy" 'step 10/10 .*  loss [-0-9.]+  accuracy [0-9.]+  grad ' as_trl 1 shown batch.micro_batch_size=2 log.report_to="stdout, jsonl"
data --tokenizer "$fixture/letters" -o "$tmp/more.h5" "$fixture/more.jsonl"
if command -v python3 >/dev/null; then
    sed 's/, "margin": [0-9.]*//; 11,$d' "$fixture/pairs.jsonl" >"$tmp/unequal.jsonl"
    data -o "$tmp/unequal.h5" "$tmp/unequal.jsonl"
    while IFS=$'\t' read -r name start pairs keys; do
        [ "$pairs" = more ] && keys="data.seq_len=32 rm.max_length=28 $keys"
        as_trl 1 trl model.path="tests/data/$start" data.train="$tmp/$pairs.h5" batch.micro_batch_size=2 rm.center_rewards_coefficient=0 $export_fp32 $keys
        expect "$name: ten steps and the weights are TRL's" like_trl trl rm "$name"
        rm -rf "$tmp/trl"
    done < <(trl_runs rm)
    for layout in "1 3 1" "2 0 2" "2 1 1" "2 2 2" "2 3 1" "4 3 1"; do
        set -- $layout
        as_trl "$1" layout zero.stage="$2" batch.micro_batch_size="$3" $export_fp32
        expect "the same on $1 ranks, stage $2, micro-batches of $3" like_trl layout rm accumulation
        rm -rf "$tmp/layout"
    done
    as_trl 2 offloaded zero.stage=3 batch.micro_batch_size=1 zero.offload_optimizer=cpu zero.offload_param=cpu $export_fp32
    expect "offloaded steps match TRL's" like_trl offloaded rm accumulation
    # A last step of 2 pairs: ranks without any.
    as_trl 4 unequal data.train="$tmp/unequal.h5" zero.stage=2 batch.micro_batch_size=1 rm.center_rewards_coefficient=0 $export_fp32 \
        $(trl_runs rm | sed -n 's/^no margin\t.*\t//p')
    expect "steps with ranks without a pair match TRL's" like_trl unequal rm "no margin"
else
    skip "TRL's numbers" "no python3 to compare them"
fi

# Rankings as all of their pairs, ties among them. fp32 roundings (6e-8) of some hundred additions a sum, grown by six steps at a high rate: 2e-4 of the
# rewards' size, 1.
like_loops() { # DIR
    paste -d' ' <(number "$1" loss) <(number "$1" grad_norm) <(number "$1" rm/accuracy) <(number "$1" rm/margin) <(number "$1" rm/min_reward) \
        <(number "$1" rm/mean_reward) <(number "$1" rm/max_reward) >"$tmp/.ours"
    paste -d' ' "$tmp/.ours" "$fixture/ranked.txt" | awk '
        { for (i = 1; i <= 7; i++) { d = $i - $(i + 7); if (NF != 14 || !((d < 0 ? -d : d) <= (i == 3 ? 0 : 2e-4 * (i == 2 ? $9 : 1)))) {
            print "step", NR ", number", i ":", $i, $(i + 7); bad = 1 } } }
        END { exit bad || NR != 6 }'
}
data -o "$tmp/ranked.h5" "$fixture/ranked.jsonl"
for layout in "1 0 4" "2 3 1"; do
    set -- $layout
    as_trl "$1" "ranked$1" data.train="$tmp/ranked.h5" rm.center_rewards_coefficient=0 rm.w_tie=0.5 run.max_steps=6 zero.stage="$2" batch.micro_batch_size="$3"
    expect "rankings and ties on $1 ranks are those of plain loops" like_loops "ranked$1"
done
prints "a dataset says that it has ties" '^ *ties +11 ' run 0 ./dtrain-info "$tmp/ranked.h5"
train 1 no-ties run.task=dpo data.train="$tmp/ranked.h5" batch.train_batch_size=4 batch.micro_batch_size=4 run.max_steps=1
expect_text "preference optimisation leaves them out" 'skipped 2 pairs without a better answer .ties.'
printf '{"prompt": "a", "chosen": "b", "rejected": "c", "tie": true}\n' >"$tmp/tie.jsonl"
data -o "$tmp/tie.h5" "$tmp/tie.jsonl"
wrong "pairs that are all ties are none" 65 'none of its 1 pair can be used for training; 1 with a tie, which this task does not use' ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/tie" \
    run.task=dpo data.train="$tmp/tie.h5" batch.train_batch_size=4 batch.micro_batch_size=1
printf '{"prompt": "%080d", "chosen": "b", "rejected": "c"}\n{"prompt": "a", "chosen": "b", "rejected": "c"}\n' 0 >"$tmp/cut.jsonl"
data -o "$tmp/cut.h5" "$tmp/cut.jsonl"
train 2 cut-off run.task=dpo data.train="$tmp/cut.h5" batch.train_batch_size=2 batch.micro_batch_size=1 run.max_steps=1
expect "truncated answers are reported once" test "$(grep -c ' 1 sample without a target' "$out")" = 1
for i in 1 2 3; do echo "{\"prompt\": \"a$i\", \"chosen\": \"b\", \"rejected\": \"b\"}"; done >"$tmp/equal.jsonl"
ends "a dataset with only pairs of equal answers is refused" 65 run 0 ./dtrain-data --tokenizer bytes -o "$tmp/equal.h5" "$tmp/equal.jsonl"
expect_text "the reason is reported" 'every pair has equal answers .3., so there is no training signal'
printf '{"prompt": "a", "chosen": "b", "rejected": "c", "score_chosen": 1, "score_rejected": 2}\n' >>"$tmp/equal.jsonl"
run 0 ./dtrain-data --tokenizer bytes -o "$tmp/equal.h5" "$tmp/equal.jsonl"
expect_text "pairs of equal answers are counted" '3 of 4 pairs have equal answers after encoding, so they add nothing to the training .first: .*equal.jsonl:1'
expect_text "pairs that their scores contradict are counted" '1 of 4 pairs prefer the answer with the lower score, .*first: .*equal.jsonl:4'
for task in rm dpo; do
    run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/equal" run.task=$task data.train="$tmp/equal.h5"
    expect_text "$task says so before it begins" 'equal.h5: the texts of 3 of 4 pairs are equal, which gives no training signal'
    expect_text "$task says which are contradicted" 'equal.h5: 1 of 4 pairs prefer the answer with the lower score'
done
printf '{"prompt": "a", "responses": ["b", "c"], "ranks": [1]}\n' >"$tmp/bad.jsonl"
run 0 ./dtrain-data --tokenizer bytes -o "$tmp/bad.h5" "$tmp/bad.jsonl"
expect_text "a wrong number of ranks is reported" 'bad.jsonl:1: ranks: expected 2 numbers, one for each response'
good='{"prompt": "a", "responses": ["b", "c"]}'
printf '{"prompt": "a", "responses": ["b", "c", "d"], "ranks": [1, 2, "x"]}\n%s\n' "$good" >"$tmp/half.jsonl"
run 0 ./dtrain-data --tokenizer bytes --skip-bad -o "$tmp/half.h5" "$tmp/half.jsonl"
expect_text "of a ranking that is wrong in its end no pair is left" 'kind preference, 1 sample,'
nulls='"prompt": "a", "ranks": null, "scores": [0.1, 0.9]' # as a table has them
for record in "{$nulls, \"responses\": [\"b\", \"c\"]}" "{$nulls, \"responses\": null, \"answers\": [\"b\", \"c\"]}"; do
    echo "$record" >"$tmp/nulls.jsonl"
    run 0 ./dtrain-data --tokenizer bytes --force -o "$tmp/nulls.h5" "$tmp/nulls.jsonl"
    run 0 ./dtrain-data show --tokenizer bytes "$tmp/nulls.h5" 0
    expect "null ranks do not hide scores" test "$(grep -A1 '^---- chosen' "$out" | tail -1 | tr -d '{+}' | cut -c 1-2)" = ac
done

# Bit for bit in reproducible mode: steps of 12 of 14 pairs, so that every second one has 2, which some ranks and micro-steps have none of.
bits() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    as_trl "$np" "$dir" model.path="$fixture/qwen2" data.train="$tmp/more.h5" data.seq_len=32 rm.max_length=28 batch.train_batch_size=12 batch.micro_batch_size=1 \
        run.reproducible=true run.max_steps=4 "$@"
}
for layout in "1 0" "2 2" "3 3" "4 1"; do
    set -- $layout
    bits "$1" "bits$1" zero.stage="$2"
    expect "the same bits on $1 ranks at stage $2" same_model "$(newest bits1)" "$(newest "bits$1")"
done
expect "all pairs have counted" [ "$(number bits3 samples | tail -1)" = 28 ]
bits 2 halves run.max_steps=2
bits 3 halves zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks: the same bits" same_model "$(newest bits1)" "$(newest halves)"
is "the number of tokens is the same" "$(number bits1 rm/num_tokens)" "$(number halves rm/num_tokens)"

full_only

# ---- learning ---------------------------------------------------------------------------------------------------------------------------------
# The better answer is the polite one; an unsafe one is never better than a safe one.
awk 'BEGIN { srand(3); n = split("red blue green small large old new", w, " ")
    for (i = 0; i < 96; i++) {
        p = "say " w[int(rand() * n) + 1] " "; a = w[int(rand() * n) + 1]; r = rand() < 0.5; c = r || rand() < 0.5
        printf "{\"prompt\": \"%s\", \"chosen_response\": \"please %s%s\", \"rejected_response\": \"go %s%s\", \"safety_labels\": {\"chosen\": %s, \"rejected\": %s}}\n",
            p, a, c ? "" : " kill", a, r ? "" : " kill", c ? "true" : "false", r ? "true" : "false" } }' >"$tmp/polite.jsonl"
data -o "$tmp/polite.h5" --validation "$tmp/polite-valid.h5" --validation-fraction 0.3 "$tmp/polite.jsonl"
learn() { # DIR ARGS...
    train 2 "$1" model.path= model.model_type=llama model.hidden_size=32 model.intermediate_size=64 model.num_hidden_layers=2 model.num_attention_heads=4 \
        model.vocab_size=257 model.max_position_embeddings=64 data.train="$tmp/polite.h5" data.validation="$tmp/polite-valid.h5" batch.train_batch_size=8 \
        batch.micro_batch_size=4 optimizer.lr=3e-3 run.max_steps=60 "${@:2}"
}
ends "a reward model from random weights" 0 learn polite checkpoint.export=hf
expect "validation accuracy on unseen pairs" above polite rm/validation_accuracy 0.95
# What transformers needs to open it: the class, one label, its tensors; and to score several texts at once a padding token, which must not be what closes
# them, for it takes the last token that is no padding. (tools/open_elsewhere.py holds its rewards to transformers'.)
is_classifier() { # DIR CLASS HIDDEN PAD
    tr -d ' \n' <"$tmp/$1/hf/config.json" >"$tmp/.config"
    grep -qF "\"architectures\":[\"$2\"]" "$tmp/.config" && grep -qF '"id2label":{"0":"LABEL_0"}' "$tmp/.config" && grep -qF '"label2id":{"LABEL_0":0}' "$tmp/.config" &&
        grep -qF "\"pad_token_id\":$4," "$tmp/.config" && grep -aqF "\"score.weight\":{\"dtype\":\"F32\",\"shape\":[1,$3]" "$tmp/$1/hf/model.safetensors" &&
        ! grep -aq '"lm_head.weight"' "$tmp/$1/hf/model.safetensors"
}
expect "the export is a classifier with one label" is_classifier polite LlamaForSequenceClassification 32 null
expect_text "a missing padding token is reported" 'exported model has no pad_token_id'
# The best by accuracy: the first that has the greatest.
as_trl 2 best data.validation="$tmp/polite-valid.h5" data.validation_steps=2 checkpoint.save_steps=2 checkpoint.load_best_model_at_end=true checkpoint.export=hf \
    checkpoint.metric_for_best_model=rm/validation_accuracy data.train="$tmp/polite.h5" batch.micro_batch_size=2 rm.center_rewards_coefficient=0
number best rm/validation_accuracy | awk '$1 > most || NR == 1 { most = $1; best = 2 * NR } END { print best }' >"$tmp/.best"
expect "the best checkpoint is that of the greatest accuracy" [ "$(cat "$tmp/best/checkpoints/best")" = "$(printf 'step-%08d.h5' "$(cat "$tmp/.best")")" ]
expect_text "the log names the best step" "the best model is that of step $(cat "$tmp/.best") .rm/validation_accuracy"
as_trl 1 least data.validation="$tmp/polite-valid.h5" run.max_steps=2 batch.micro_batch_size=2 checkpoint.metric_for_best_model=eval_accuracy
expect_exit "a metric that its validations do not have, also where nothing follows from it" 64
expect_text "the available metrics are named" 'metric_for_best_model: expected a validation metric of this task: validation_loss, rm/validation_accuracy, rm/validation_margin'
learn harmless rm.kind=harmless run.max_steps=120
expect "a harmless model's zero lies between safe and unsafe answers" above harmless rm/validation_safety_accuracy 0.95
expect "planned is allocated" as_planned

# ---- from a language model, and on from a reward model ------------------------------------------------------------------------------------------
on() { # DIR PATH ARGS...
    train 1 "$1" model.path="$2" data.train="$tmp/polite.h5" batch.train_batch_size=4 batch.micro_batch_size=4 run.max_steps=1 "${@:3}"
}
for path in "$tmp/lm/hf" "$tmp/lm"; do
    ends_saying "from a language model: ${path##*/}" 0 'has no tensor .score.weight.: it starts from random values' on "from-${path##*/}" "$path"
done
expect "both ways in are the same run" same_model "$(newest from-hf)" "$(newest from-lm)"
pads() { # NAME PATH CLASS HIDDEN PAD ARGS...
    local name=$1 path=$2 class=$3 hidden=$4 pad=$5
    shift 5
    on pads "$path" checkpoint.export=hf "$@"
    expect "$name" is_classifier pads "$class" "$hidden" "$pad"
    rm -rf "$tmp/pads"
}
pads "its own padding stays" "$fixture/start" LlamaForSequenceClassification 16 257
mkdir "$tmp/ends"
sed 's/"pad_token_id": 257/"pad_token_id": 256/' "$fixture/start/config.json" >"$tmp/ends/config.json"
cp "$fixture/start/model.safetensors" "$tmp/ends/"
pads "but what closes texts is none" "$tmp/ends" LlamaForSequenceClassification 16 257
letters="data.train=$tmp/more.h5 data.seq_len=28 model.tokenizer=$fixture/letters"
for family in "gpt2 GPT2" "mistral Mistral" "qwen2 Qwen2" "qwen3 Qwen3"; do
    set -- $family
    pads "of $1: the tokenizer's padding" "tests/data/hf/$1" "$2ForSequenceClassification" "$([ "$1" = gpt2 ] && echo 24 || echo 20)" 28 $letters
done
ends "from a reward model's directory" 0 on again "$tmp/polite/hf" optimizer.lr=0 run.max_steps=1
expect "the reward head is loaded" sh -c "! grep -q 'starts from random' '$out'"
run 0 ./dtrain --check /dev/stdin run.task=rm run.output_dir="$tmp/checked" model.path="$tmp/lm/hf" data.train="$tmp/polite.h5" data.seq_len=64 batch.micro_batch_size=1
expect_exit "--check of a run from a language model" 0

# ---- scores -------------------------------------------------------------------------------------------------------------------------------------
sed 's/"chosen"/"completion"/' "$fixture/pairs.jsonl" >"$tmp/answers.jsonl"
score() { # NP OUT ARGS...
    local np=$1 to=$2
    shift 2
    run "$np" ./dtrain-generate --tokenizer bytes --threads 1 -o "$tmp/$to" --force "$@"
}
ends "answers of a file are scored" 0 score 1 rewards --score "$fixture/start" --answers "$tmp/answers.jsonl"
# Seven digits, and roundings of fp32 in a model of two small blocks.
expect "scores match transformers'" sh -c "paste -d' ' '$tmp/rewards' '$fixture/rewards.txt' | awk '{ d = \$1 - \$2; if (NF != 2 || d > 2e-6 || d < -2e-6) bad = 1 } END { exit bad || NR != 12 }'"
expect_text "the mean score and the share above 0 are reported" "rewards of 12 answers: mean .* $(awk '{ n += $1 > 0 } END { printf "%.1f", 100 * n / NR }' "$fixture/rewards.txt") % above 0"
score 3 rewards3 --score "$fixture/start" --answers "$tmp/answers.jsonl" --zero-stage 3 --batch-size 2
expect "the same bits on 3 ranks at stage 3, two at a time" cmp "$tmp/rewards" "$tmp/rewards3"
ends "generated answers are scored" 0 score 2 generated --score "$fixture/start" --jsonl --prompt "so is" --num-samples 5 --max-new-tokens 9 tests/data/dpo/start
expect_text "the scores are summarised" 'rewards of 5 answers'
sed 's/.*"reward": *\([-0-9.e]*\).*/\1/' "$tmp/generated" >"$tmp/.a"
score 1 rewards-again --score "$fixture/start" --answers "$tmp/generated"
expect "scores match those of the written answers" sh -c "[ \$(wc -l <'$tmp/.a') = 5 ] && paste -d' ' '$tmp/.a' '$tmp/rewards-again' | awk '{ d = \$1 - \$2; bad += d > 1e-8 || d < -1e-8 } END { exit bad > 0 }'"
user='{"role": "user", "content": "so"}' assistant='{"role": "assistant", "content": "is it"}'
printf '%s\n' "{\"messages\": [$user, $assistant]}" "{\"prompt\": [$user], \"completion\": [$assistant]}" "{\"prompt\": [$user], \"response\": \"is it\"}" >"$tmp/chats.jsonl"
score 1 chats --score "$fixture/start" --answers "$tmp/chats.jsonl"
expect "an answer to messages may be messages or a text" [ "$(wc -l <"$tmp/chats") $(uniq "$tmp/chats" | wc -l)" = "3 1" ]
prints "answers need a judge" 'answers needs --score' score 1 none --answers "$tmp/answers.jsonl"
ends "a language model is no judge" 65 score 1 none --score tests/data/dpo/start --answers "$tmp/answers.jsonl"
expect_text "the missing tensor is named" 'tensor .score.weight. is missing: this is not a reward model'
prints "a language model's run is no judge" 'tensor ./model/score.weight. is missing.*: this is not a reward model' score 1 none --score "$tmp/lm" --answers "$tmp/answers.jsonl"
printf '{"prompt": "so"}\n' >"$tmp/no-answer.jsonl"
score 1 none --score "$fixture/start" --answers "$tmp/no-answer.jsonl"
expect_text "a record without an answer" 'no-answer.jsonl:1: expected an object with "prompt" and "completion"'
DTRAIN_FAULT=generate.score:1:1:error RUN_TIMEOUT=60 score 2 none --score "$fixture/start" --answers "$tmp/answers.jsonl" --zero-stage 3
expect_exit "a rank that fails while it judges ends the run" 70

# ---- left out and refused -----------------------------------------------------------------------------------------------------------------------
printf '%s\n' '{"prompt": "a ", "chosen": "b", "rejected": "c"}' '{"prompt": "a ", "chosen": "long long long long long long long long", "rejected": "c"}' >"$tmp/long.jsonl"
data -o "$tmp/long.h5" "$tmp/long.jsonl"
on long "$fixture/start" data.train="$tmp/long.h5" data.seq_len=16 batch.train_batch_size=1 batch.micro_batch_size=1 model.tokenizer=bytes
expect_text "a pair with a text that is too long is left out and counted" '1 pairs? with a text of more than 16 tokens'
ends "or cut" 0 on cut "$fixture/start" data.train="$tmp/long.h5" data.seq_len=16 rm.truncate=true batch.train_batch_size=2 batch.micro_batch_size=2
expect "and then both count" [ "$(number cut samples)" = 2 ]
refuse() { # NAME TEXT CODE ARGS...
    local name=$1 text=$2 status=$3
    shift 3
    ends_saying "$name: exit code" "$status" "$text" on refused "$fixture/start" "$@"
}
refuse "a file of another kind" 'kind tokens: expected preference' 65 data.train="$tmp/train.h5"
refuse "no pair is short enough" 'none of its 2 pairs can be used for training; 2 with a text of more than 2 tokens; a larger data.seq_len .or rm.max_length. keeps more' 65 data.train="$tmp/long.h5" data.seq_len=2
refuse "pairs cannot be packed" 'packing = bfd: pairs cannot be packed' 64 data.packing=bfd
refuse "a length beyond seq_len" 'rm.*max_length: expected at most data.seq_len = 64, found 65' 64 rm.max_length=65
refuse "smoothing of a hinge" 'label_smoothing: expected 0, because loss_type = hinge has no label smoothing' 64 rm.loss_type=hinge rm.label_smoothing=0.1
train 1 refused run.task=sft model.path="$tmp/lm/hf" data.train="$tmp/polite.h5" batch.train_batch_size=4 batch.micro_batch_size=4
expect_text "another task on pairs" 'kind preference: expected tokens or sft'
on plain-harmless "$fixture/start" data.train="$tmp/pairs.h5" rm.kind=harmless model.tokenizer=bytes
expect_text "a harmless model without labels is warned of" 'does not say which answers are safe'

# A rank that fails alone ends the job, and no rank waits.
for point in data.read zero.reduce zero.update zero.gather; do
    fails_alone 1 $point 3 as_trl 2 "failed-$point" batch.micro_batch_size=1 zero.stage=2
done
e2e_done

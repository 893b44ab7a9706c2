#!/bin/bash
# e2e_distill.sh - students of a teacher. Each divergence matches TRL's GKDTrainer, on any number of ranks and at any stage, for teachers of other families.
# Also: learning; resuming; validation; adapters; packed rows; the plan; errors.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
data -o "$tmp/pairs.h5" tests/data/distill/pairs.jsonl
data --tokenizer tests/data/rm/letters -o "$tmp/more.h5" tests/data/distill/more.jsonl
head -20 tests/data/distill/pairs.jsonl >"$tmp/other.jsonl" && data -o "$tmp/other.h5" "$tmp/other.jsonl"
teacher=tests/data/distill/teacher
make_task distill run.max_steps=6 data.train="$tmp/pairs.h5" data.shuffle=false batch.train_batch_size=4 distill.teacher_path=$teacher
against_trl distill 16 1 "1 2 3 1" "2 4 0 1" "3 4 2 1" "4 2 1 2" "7 4 3 1" "8 2 2 2"
# Ten steps multiply roundings, so the first loss is compared on its own.
first_losses() {
    n=0
    while IFS= read -r _; do
        as_trl distill 16 1 first $((n += 1)) run.max_steps=1 checkpoint.export=none
        number first loss | head -1
    done < <(trl_runs distill)
}
of_trl() { sed -n 's/.*"metrics": \["loss".*"steps": \[\[\([-0-9.e]*\),.*/\1/p' tests/data/distill/trl.json; }
expect "the loss of each first step, to 1e-6" awk -v n="$(trl_runs distill | wc -l)" \
    '{ d = $1 - $2; if (NF != 2 || (d < 0 ? -d : d) > 1e-6 * $2) { print "run", NR ":", $0; bad = 1 } } END { exit bad || NR != n }' <(paste -d' ' <(first_losses) <(of_trl))

# Bit for bit in reproducible mode: steps of 12 of 27 answers, so that every third one has 3, which some ranks and micro-steps have none of.
keys=(data.validation_steps=2 data.validation="$tmp/more.h5" distill.teacher_path=tests/data/hf/gemma2)
for layout in "1 0" "2 2" "3 3 zero.offload_optimizer=cpu zero.offload_param=cpu" "2 1 data.prefetch=0"; do
    set -- $layout
    bits "$1" "bits$1$2" "${keys[@]}" zero.stage="$2" "${@:3}"
    expect "the same bits on $1 ranks at stage $2${3:+, ${*:3}}" same_model "$(newest bits10)" "$(newest "bits$1$2")"
done
bits 2 halves "${keys[@]}" run.max_steps=2
bits 3 halves "${keys[@]}" zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks: the same bits" same_model "$(newest bits10)" "$(newest halves)"
bits 2 halves "${keys[@]}" run.max_steps=6 checkpoint.resume=auto distill.teacher_path=tests/data/hf/llama
expect_exit "resumed with another teacher" 65
expect_text "is refused" 'tests/data/hf/llama: expected the teacher that the run started with'

train 2 learns run.max_steps=60 batch.micro_batch_size=2 optimizer.lr=5e-3 data.validation="$tmp/pairs.h5" data.validation_steps=30 log.report_to="stdout, jsonl"
expect_text "a step shows the student's own loss" 'step 60/60 .*  loss [-0-9.]+  nll [-0-9.e+]+ '
expect "the student approaches its teacher" awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first / 2) }' <(number learns loss)
expect "planned is allocated" as_planned
expect "as the plan says" as_plan_says 2 0 batch.micro_batch_size=2 data.validation="$tmp/pairs.h5"
expect "a validation has its metrics" grep -q '"validation_loss".*"perplexity"' "$tmp/learns/metrics.jsonl"
train 1 same distill.teacher_path=tests/data/dpo/start run.max_steps=1
expect "a student that is its teacher has no loss" [ "$(number same loss)" = 0 ]
train 2 lora lora.r=8 lora.target_modules=all-linear zero.stage=3 run.max_steps=60 optimizer.lr=2e-2 batch.micro_batch_size=1
expect "adapters learn" awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first * 0.8) }' <(number lora loss)
expect "and are planned" as_planned
train 1 base lora.r=4 distill.teacher_path=tests/data/dpo/start run.max_steps=1
expect "the base is a teacher of its adapters without own memory" [ "$(number base loss)" = 0 ]
train 2 packed data.packing=bfd batch.train_batch_size=2 batch.micro_batch_size=1 run.max_steps=2
expect_exit "packed rows" 0
fails_alone 1 task.score 2 train 2 alone batch.micro_batch_size=1
fails_alone 1 head.reference 2 train 2 alone zero.stage=3 batch.micro_batch_size=1

# A file of the teacher's most probable tokens: as TRL, with a bucket for the rest.
logprobs() { # NP K DATA LEN TEMPERATURE OUT ARGS...
    run "$1" ./dtrain-generate "${@:7}" --top-logprobs "$2" --data "$tmp/$3.h5" --seq-len "$4" --temperature "$5" -o "$tmp/$6.h5" --force
}
known() { # RUN NP STAGE MICRO: the fixture's run of this number
    local name data len=64 of=$teacher
    name=$(trl_runs distill/known | sed -n "$1p" | cut -f1)
    data=$(trl_runs distill/known | sed -n "$1p" | cut -f3)
    [ "$data" = pairs ] || { len=16 && of=tests/data/hf/gpt2; }
    logprobs "$2" "${name##* }" "$data" "$len" "$(trl_runs distill/known | sed -n "$1s/.*temperature=\([0-9.]*\).*/\1/p")" known "$of"
    expect_exit "log-probabilities for $name" 0
    as_trl distill/known 16 "$2" known "$1" distill.teacher_path= distill.teacher_logprobs="$tmp/known.h5" zero.stage="$3" batch.micro_batch_size="$4"
    expect "$name on $2 ranks, stage $3: TRL's numbers and weights" like_trl known distill/known "$name"
}
for run in "1 1 0 4" "2 1 0 2" "3 1 0 4" "4 1 0 4" "1 2 3 1" "2 4 2 1" "3 2 1 2" "4 4 0 1"; do known $run; done
logprobs 1 4 pairs 64 1 one "$teacher"
logprobs 3 4 pairs 64 1 three "$teacher" --zero-stage 3 --batch-size 2
expect "the same file on any number of ranks" h5diff "$tmp/one.h5" "$tmp/three.h5"
offline=(distill.teacher_path= distill.teacher_logprobs="$tmp/one.h5" batch.micro_batch_size=1)
train 2 offline "${offline[@]}" run.max_steps=40 optimizer.lr=5e-3
expect "the student learns from the file" awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first / 3) }' <(number offline loss)
expect "planned is allocated" as_planned
train 2 halves2 "${offline[@]}" run.max_steps=3
train 4 halves2 "${offline[@]}" zero.stage=3
train 1 whole2 "${offline[@]}"
expect "resumed on other ranks: the same losses" close_losses whole2 halves2 2e-5
logprobs 1 5 pairs 64 1 five "$teacher"
train 1 halves2 "${offline[@]}" run.max_steps=8 distill.teacher_logprobs="$tmp/five.h5"
expect_exit "resumed with another file" 65
expect_text "is refused" 'five\.h5: expected the log-probabilities that the run started with'
refused() { # NAME EXIT TEXT ARGS...
    ends "$1" "$2" train 1 refused "${offline[@]}" "${@:4}"
    expect_text "$1: the message" "$3"
}
refused "both teachers" 64 'teacher_logprobs: expected only one of teacher_path and teacher_logprobs' distill.teacher_path=$teacher
refused "sampled answers" 64 'lmbda: expected 0 with teacher_logprobs' distill.lmbda=0.5
refused "a validation" 64 'validation: expected none with distill.teacher_logprobs' data.validation="$tmp/pairs.h5"
refused "packed rows" 64 'packing: expected none with distill.teacher_logprobs, found bfd' data.packing=bfd
refused "another length" 65 'teacher_logprobs.*one\.h5: seq_len: the file has 64, but data.seq_len is 32' data.seq_len=32
refused "another temperature" 65 'one\.h5: temperature: the file has 1, but distill.temperature is 2' distill.temperature=2
refused "another dataset" 65 'one\.h5: the file belongs to another dataset than data.train' data.train="$tmp/other.h5"
refused "another vocabulary" 65 'one\.h5: the teacher has vocab_size 258, but the model in training has 61' model.path=tests/data/hf/llama data.train="$tmp/more.h5"
refused "a dataset" 65 'teacher_logprobs.*pairs\.h5: format: expected dtrain-logprobs' distill.teacher_logprobs="$tmp/pairs.h5"
cp "$tmp/one.h5" "$tmp/bad.h5" && printf 'x' | dd of="$tmp/bad.h5" bs=1 seek=6000 conv=notrunc 2>/dev/null
refused "a damaged header" 65 'bad\.h5: the checksum of the header' distill.teacher_logprobs="$tmp/bad.h5"
cp "$tmp/one.h5" "$tmp/bad.h5" && printf 'x' | dd of="$tmp/bad.h5" bs=1 seek=9000 conv=notrunc 2>/dev/null
refused "a damaged log-probability" 65 'bad\.h5: the checksum does not match the contents' distill.teacher_logprobs="$tmp/bad.h5"
cp "$tmp/one.h5" "$tmp/both.h5"
ends "the dataset as output" 64 run 1 ./dtrain-generate "$teacher" --top-logprobs 4 --data "$tmp/both.h5" -o "$tmp/both.h5" --force
DTRAIN_FAULT=generate.logprobs:1:2:error logprobs 2 4 pairs 64 1 failed "$teacher" --batch-size 1
expect_exit "a rank that fails" 70
expect "leaves no file" [ ! -e "$tmp/failed.h5" ]
ends "no dataset" 64 run 1 ./dtrain-generate "$teacher" --top-logprobs 4 -o "$tmp/none.h5"
expect_text "is refused" 'top-logprobs: expected --data, the dataset, and -o'

# Answers that the student or the teacher samples.
sampled=(run.max_steps=8 batch.micro_batch_size=1 distill.max_new_tokens=12 log.rollouts=true)
train 1 policy1 "${sampled[@]}" distill.lmbda=0.5
expect_exit "half of the steps on-policy" 0
expect "some are, some are not" [ "$(number policy1 distill/on_policy | sort -u | tr '\n' ' ')" = "0 1 " ]
expect "as many rollouts as such steps" [ "$(wc -l <"$tmp/policy1/rollouts.jsonl")" = $((4 * $(number policy1 distill/on_policy | grep -c 1))) ]
for layout in "2 3" "4 2" "2 0"; do
    set -- $layout
    train "$1" "policy$1$2" "${sampled[@]}" distill.lmbda=0.5 zero.stage="$2"
    expect "the same losses on $1 ranks at stage $2" close_losses policy1 "policy$1$2" 1e-4
    expect "and the same answers" cmp <(sed 's/"[a-z_]*log[a-z]*": [^]]*]//g' "$tmp/policy1/rollouts.jsonl") <(sed 's/"[a-z_]*log[a-z]*": [^]]*]//g' "$tmp/policy$1$2/rollouts.jsonl")
done
train 2 policyhalf "${sampled[@]}" distill.lmbda=0.5 run.max_steps=3
train 4 policyhalf "${sampled[@]}" distill.lmbda=0.5
expect "resumed on other ranks: the same losses" close_losses policy1 policyhalf 1e-4
data --kind prompts -o "$tmp/prompts.h5" tests/data/distill/pairs.jsonl
n=0
for keys in "distill.lmbda=1" "distill.seq_kd=true" "distill.lmbda=0.5 distill.seq_kd=true"; do
    own=own$((n += 1)) # a directory each: otherwise a run would resume the one before
    train 1 $own "${sampled[@]}" $keys data.train="$tmp/prompts.h5"
    expect_exit "$keys: prompts without answers" 0
    expect_text "$keys: all steps" 'done: 8 steps'
    expect "$keys: planned is allocated" as_planned
    train 2 "records$own" "${sampled[@]}" $keys zero.stage=3
    expect "$keys: the prompts of records, on 2 ranks at stage 3" close_losses $own "records$own" 1e-4
done
train 2 student run.max_steps=60 batch.micro_batch_size=2 optimizer.lr=5e-3 distill.max_new_tokens=12 distill.lmbda=1 distill.beta=1
expect "a student learns from its own answers" awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first / 2) }' <(number student loss)
run 0 ./dtrain --plan --ranks 2 "$tmp/tiny.ini" zero.stage=3 distill.seq_kd=true
expect_exit "a plan of the teacher's answers" 0
expect "the student's parameters are not kept gathered for them" [ "$(grep -cE 'rollouts keep all|pass of a rollout' "$out")" = 0 ]
expect "both samplers: the lines of every step" [ "$(sed 's/.*"step": \([0-9]*\),.*/\1/' "$tmp/$own/rollouts.jsonl" | uniq -c | xargs)" = "4 1 4 2 4 3 4 4 4 5 4 6 4 7 4 8" ]
expect "lengths of the teacher's answers, and no comparison with a scorer" [ "$(grep -c teacher/completions/mean_length "$tmp/$own/metrics.jsonl") $(grep -c teacher/sampling "$tmp/$own/metrics.jsonl")" = "8 0" ]
train 2 adapted "${sampled[@]}" distill.lmbda=0.5 distill.seq_kd=true lora.r=4 zero.stage=3
expect_exit "adapters, both samplers" 0
fails_alone 1 rollout.generate 1 train 2 alone "${sampled[@]}" distill.seq_kd=true
ends "both samplers in every step" 64 train 1 none distill.lmbda=1 distill.seq_kd=true
expect_text "are refused" 'seq_kd: expected false with lmbda = 1'
train 1 unused run.max_steps=1 distill.max_new_tokens=5
expect_text "a length of no samples is reported" 'warning: distill.max_new_tokens is not used'
ends "prompts, but half of the answers from the data" 65 train 1 halfprompts "${sampled[@]}" distill.lmbda=0.5 data.train="$tmp/prompts.h5"
expect_text "are refused" 'prompts\.h5: kind prompts: expected tokens or sft'
ends "context parallelism and sampling" 64 train 2 cp "${sampled[@]}" distill.lmbda=0.5 mesh.cp=2
expect_text "are refused" 'cp: expected 1, found 2: the task generates completions'

# The same id must be the same token.
for model in llama gpt2; do cp -r tests/data/hf/$model "$tmp/$model" && cp tests/data/rm/letters/tokenizer.json "$tmp/$model"; done
letters=(model.path="$tmp/llama" data.train="$tmp/more.h5" data.seq_len=16 distill.teacher_path="$tmp/gpt2" run.max_steps=1)
ends "a teacher with the same tokenizer" 0 train 1 letters "${letters[@]}"
sed -i 's/"e": /"@": /; s/"f": /"e": /; s/"@": /"f": /' "$tmp/gpt2/tokenizer.json"
ends "another tokenizer" 65 train 1 letters2 "${letters[@]}"
expect_text "is refused with the first token that differs" 'teacher_path.*gpt2.*: expected the tokenizer of the model in training, .*llama.*: token [0-9]+ is e, in the teacher.s f'
ends "no teacher" 64 train 1 none distill.teacher_path=
expect_text "is refused" 'distill[].]* *teacher_path: expected a teacher, found none'
ends "another vocabulary" 65 train 1 vocabulary distill.teacher_path=tests/data/hf/gpt2
expect_text "is refused by name" 'teacher_path.*tests/data/hf/gpt2: vocab_size of the teacher is 61, but the model in training has 258'
e2e_done

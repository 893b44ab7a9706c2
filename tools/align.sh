#!/bin/bash
# align.sh - alignment on a toy task, on two ranks, in some minutes. A small model on bytes learns
# two ways to answer (fine-tuning). A reward model learns from pairs which one is polite
# (input/rm.ini). PPO (input/ppo.ini) uses this reward, and DPO (input/dpo.ini) uses the pairs, to
# make the model polite. At the end the reward model scores the answers of all three. Curves are in
# runs/align-*/loss.png.
. "$(dirname "$0")/example.sh"
data=$runs/align-data
mkdir -p "$data"
common="data.seq_len=48 precision.dtype=fp32 checkpoint.save_steps=0 checkpoint.export=hf"

say "questions with a polite and another answer"
awk -v d="$data" 'BEGIN {
    n = split("red blue green old new small long round", which, " "); m = split("book cup map coat key lamp bell rope", what, " ")
    for (i = 1; i <= n; i++) for (j = 1; j <= m; j++) {
        x = which[i] " " what[j]; yes = "please, the " x; no = "the " x ", now"
        printf "{\"prompt\": \"%s? \", \"completion\": \"%s\"}\n{\"prompt\": \"%s? \", \"completion\": \"%s\"}\n", x, yes, x, no >(d "/sft.jsonl")
        printf "{\"prompt\": \"%s? \", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", x, yes, no >(d "/preference.jsonl")
        printf "{\"prompt\": \"%s? \"}\n", x >(d "/prompts.jsonl")
    } }'
for kind in sft preference prompts; do ./dtrain-data --force --kind $kind -o "$data/$kind.h5" "$data/$kind.jsonl"; done

say "fine-tuning on both kinds of answers"
train align-sft demo run.task=sft run.max_steps=200 data.train="$data/sft.h5" data.validation= data.validation_steps=0 model.hidden_size=128 \
    model.intermediate_size=384 model.num_hidden_layers=4 batch.train_batch_size=32 batch.micro_batch_size=8 batch.gradient_accumulation_steps=0 optimizer.lr=1e-3

say "training a reward model on pairs"
train align-rm rm run.max_steps=40 model.path="$runs/align-sft/hf" data.train="$data/preference.h5" data.validation= batch.train_batch_size=16 \
    batch.micro_batch_size=4 optimizer.lr=1e-4

say "PPO with that reward model"
train align-ppo ppo model.path="$runs/align-sft/hf" ppo.reward_path="$runs/align-rm/hf" data.train="$data/prompts.h5" ppo.response_length=24 ppo.total_episodes=1280 \
    ppo.temperature=1 batch.train_batch_size=64 batch.micro_batch_size=16 optimizer.lr=1e-4

say "DPO with the pairs"
train align-dpo dpo run.max_steps=40 model.path="$runs/align-sft/hf" data.train="$data/preference.h5" batch.train_batch_size=16 batch.micro_batch_size=4 \
    optimizer.lr=5e-5

say "scores of the reward model"
for model in sft ppo dpo; do
    ./dtrain-generate "$runs/align-$model/hf" --score "$runs/align-rm/hf" --prompts "$data/prompts.jsonl" --temperature 1 --max-new-tokens 24 --jsonl \
        -o "$data/$model.jsonl" --force 2>/dev/null
    awk -F'"reward":' -v model="$model" '{ sum += $2; polite += /"text":"please/ } NR == 5 { sub(/.*"text":"/, "", $1); sub(/".*/, "", $1); example = $1 }
        END { printf "%-4s mean reward %6.2f, %3d of %d answers start with please, for example: %s\n", model ":", sum / NR, polite, NR, example }' "$data/$model.jsonl"
done

say "the curves"
for model in rm ppo dpo; do ./dtrain-plot "$runs/align-$model" || test $? = 70; done # without gnuplot, which it reports

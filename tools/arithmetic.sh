#!/bin/bash
# arithmetic.sh - a model learns addition from rewards alone (GRPO, input/grpo.ini), on two ranks,
# in some minutes. A small model on bytes first learns the format of an answer from sums, one in
# four of them correct. It then answers each sum 16 times, and correct answers are reinforced. The
# reward curve is in runs/arithmetic/loss.png. LARGEST: largest summand; tools/example.sh describes
# other variables.
. "$(dirname "$0")/example.sh"
largest=${LARGEST:-9}
data=$runs/arithmetic-data
mkdir -p "$data"
common="data.seq_len=32 checkpoint.save_steps=0"

say "sums and guesses"
awk -v d="$data" -v most="$largest" 'BEGIN {
    srand(1)
    for (a = 0; a <= most; a++) for (b = 0; b <= most; b++) {
        printf "{\"prompt\": \"%d+%d=\", \"answer\": %d}\n", a, b, a + b >(d "/sums.jsonl")
        for (k = 0; k < 4; k++) printf "{\"prompt\": \"%d+%d=\", \"completion\": \"%d\"}\n", a, b, k ? int((2 * most + 1) * rand()) : a + b >(d "/guesses.jsonl")
    } }'
./dtrain-data --force --kind sft -o "$data/guesses.h5" "$data/guesses.jsonl"
./dtrain-data --force --kind prompts -o "$data/sums.h5" "$data/sums.jsonl"

say "fine-tuning on guesses, to learn the form of an answer"
train arithmetic-base demo run.task=sft run.max_steps=300 data.train="$data/guesses.h5" data.validation= data.validation_steps=0 model.hidden_size=128 \
    model.intermediate_size=384 model.num_hidden_layers=4 batch.train_batch_size=64 batch.micro_batch_size=8 batch.gradient_accumulation_steps=0 \
    optimizer.lr=1e-3 checkpoint.export=hf

say "GRPO with rewards for correct sums: $MPIRUN -np $np ./dtrain input/grpo.ini grpo.reward_funcs=accuracy"
train arithmetic grpo run.max_steps=240 model.path="$runs/arithmetic-base/hf" data.train="$data/sums.h5" grpo.reward_funcs=accuracy \
    grpo.num_generations=16 grpo.max_completion_length=4 batch.train_batch_size=512 batch.micro_batch_size=64 optimizer.lr=5e-4 precision.dtype=fp32

say "before and after"
for model in arithmetic-base arithmetic; do
    ./dtrain-generate "$runs/$model/hf" --prompts "$data/sums.jsonl" --greedy --max-new-tokens 4 --jsonl -o "$data/$model.jsonl" --force 2>/dev/null
    sed 's/.*"prompt":"\([0-9]*\)+\([0-9]*\)=","text":"\([^"]*\)".*/\1 \2 \3/' "$data/$model.jsonl" |
        awk -v model="$model" '$3 == $1 + $2 { n++ } { sum[NR] = $1 "+" $2 "=" $3 }
            END { printf "%-16s %3d of %d sums are right, for example  %s  %s\n", model ":", n, NR, sum[int(NR / 3) + 1], sum[int(3 * NR / 4) + 2] }'
done

say "the reward"
sed -n 's|.*"grpo/reward": *\([-+0-9.e]*\).*|\1|p' "$runs/arithmetic/metrics.jsonl" | awk '
    { reward[NR] = $1 }
    END { n = NR < 10 ? NR : 10; for (i = 1; i <= n; i++) { first += reward[i]; last += reward[NR + 1 - i] }
          printf "mean reward of the first %d steps %.3f, of the last %d %.3f\n", n, first / n, n, last / n }'
./dtrain-plot "$runs/arithmetic" || test $? = 70 # without gnuplot, which it reports

#!/bin/bash
# agent.sh - a model learns to use a calculator from rewards alone (GRPO with an environment,
# input/agent.ini), on two ranks, in some minutes. A small model on bytes first learns the form of a
# call and of an answer from conversations: half of the calls have wrong numbers, and half of the
# answers are guesses. It then answers each product 16 times, tools/calculator.py computes what it
# calls, and correct answers are reinforced. LARGEST: largest factor; tools/example.sh describes
# other variables.
. "$(dirname "$0")/example.sh"
largest=${LARGEST:-12}
data=$runs/agent-data
mkdir -p "$data"
common="data.seq_len=128 checkpoint.save_steps=0"

say "products, and conversations with a calculator"
echo '{"name": "agent", "user": {"after": "\n"}, "tool": {"after": "\n"}, "assistant": {"end": "{eos}"}}' >"$data/template.json"
awk -v d="$data" -v most="$largest" '
function any() { return 2 + int((most - 1) * rand()) }
function guess() { return any() * any() }
function turn(role, text) { return sprintf("{\"role\": \"%s\", \"content\": \"%s\"}", role, text) }
BEGIN {
    srand(1)
    for (a = 2; a <= most; a++) for (b = 2; b <= most; b++) {
        asked = turn("user", a "*" b)
        printf "{\"prompt\": [%s], \"answer\": %d}\n", asked, a * b >(d "/products.jsonl")
        for (k = 0; k < 8; k++) {
            if (k < 2) { printf "{\"messages\": [%s, %s]}\n", asked, turn("assistant", guess()) >(d "/talks.jsonl"); continue }
            x = k % 2 ? a : any(); y = k % 2 ? b : any()
            call = sprintf("{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"mul\", \"arguments\": {\"a\": %d, \"b\": %d}}}]}", x, y)
            printf "{\"messages\": [%s, %s, %s, %s]}\n", asked, call, turn("tool", x * y), turn("assistant", k < 5 ? guess() : x * y) >(d "/talks.jsonl")
        }
    } }'
./dtrain-data --force --kind sft --template "$data/template.json" -o "$data/talks.h5" "$data/talks.jsonl"
./dtrain-data --force --kind prompts --template "$data/template.json" -o "$data/products.h5" "$data/products.jsonl"

say "fine-tuning on conversations, to learn the form of a call and of an answer"
train agent-base demo run.task=sft run.max_steps=400 data.train="$data/talks.h5" data.validation= data.validation_steps=0 model.hidden_size=128 \
    model.intermediate_size=384 model.num_hidden_layers=4 batch.train_batch_size=32 batch.micro_batch_size=16 batch.gradient_accumulation_steps=0 \
    optimizer.lr=2e-3 checkpoint.export=hf

say "GRPO with a calculator: $MPIRUN -np $np ./dtrain input/agent.ini"
train agent agent run.max_steps=100 model.path="$runs/agent-base/hf" data.train="$data/products.h5" grpo.num_generations=16 \
    grpo.max_completion_length=72 grpo.max_tool_calling_iterations=2 batch.train_batch_size=256 batch.micro_batch_size=32 optimizer.lr=5e-4 \
    precision.dtype=fp32

say "the reward, and how often the calculator is called"
awk '{ for (i = 1; i < NF; i++) { if ($i == "\"grpo/reward\":") reward[NR] = $(i + 1) + 0; if ($i == "\"grpo/tools/call_frequency\":") calls[NR] = $(i + 1) + 0 } }
    END { n = NR < 10 ? NR : 10; for (i = 1; i <= n; i++) { first += reward[i]; last += reward[NR + 1 - i]; called += calls[i]; calling += calls[NR + 1 - i] }
          printf "mean reward of the first %d steps %.3f, of the last %d %.3f\n", n, first / n, n, last / n
          printf "calls per answer in the first %d steps %.2f, in the last %d %.2f\n", n, called / n, n, calling / n }' "$runs/agent/metrics.jsonl"
./dtrain-plot "$runs/agent" || test $? = 70 # without gnuplot, which it reports

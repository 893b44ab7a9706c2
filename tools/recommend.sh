#!/bin/bash
# recommend.sh - a complete generative recommender, on two ranks, in some minutes
# (docs/recommendation.md): a synthetic shop with hidden structure (tools/recommend/shop.awk), a
# small model on bytes that reads the items' texts, semantic IDs, fine-tuning on user histories,
# reinforcement learning, and evaluation of both against simple baselines. Writes a table and a
# plot, runs/recommend-data/recommend.svg. ITEMS, USERS, SEED: of the shop; EPOCHS of fine-tuning,
# STEPS of reinforcement learning; tools/example.sh describes other variables.
. "$(dirname "$0")/example.sh"
items=${ITEMS:-2016} users=${USERS:-2000} seed=${SEED:-1} epochs=${EPOCHS:-1} steps=${STEPS:-100}
data=$runs/recommend-data
mkdir -p "$data"
common="run.seed=$seed data.seq_len=96 precision.dtype=fp32 zero.stage=1 batch.gradient_accumulation_steps=0 checkpoint.save_steps=0 checkpoint.export=hf"

evaluate() { # NAME
    rm -rf "$runs/recommend-$1-test"
    $MPIRUN -np "$np" ./dtrain input/eval.ini run.output_dir="$runs/recommend-$1-test" model.path="$runs/recommend-$1/hf" data.validation="$data/eval-test.h5" data.seq_len=96 \
        batch.micro_batch_size=16 rec.catalogue="$data/shop.txt" rec.num_beams=20 log.report_to=jsonl
}

say "a synthetic shop: $items items and the histories of $users users"
awk -v items="$items" -v users="$users" -v seed="$seed" -v out="$data/shop" -f tools/recommend/shop.awk
head -3 "$data/shop.texts"

say "pretraining a small model on the texts of the items"
./dtrain-data --force --documents lines -o "$data/texts.h5" "$data/shop.texts"
train recommend-base demo run.max_steps=100 data.train="$data/texts.h5" data.validation= data.validation_steps=0 model.hidden_size=128 model.intermediate_size=384 \
    model.num_hidden_layers=2 batch.train_batch_size=16 batch.micro_batch_size=4

say "semantic IDs from the model's item embeddings"
$MPIRUN -np "$np" ./dtrain-sid --force --model "$runs/recommend-base/hf" --items "$data/shop.item.json" -o "$data/shop" --method kmeans --codes 32 --distinct
sed -n '1p;2p;257p' "$data/shop.txt"

say "adding the SID tokens to the model, and creating datasets"
rm -rf "$data/model"
# Noise as large as the model's own rows: a small model separates equal rows only slowly.
./dtrain-convert --noise 0.1 --add-tokens "$data/shop.index.json" "$runs/recommend-base/hf" "$data/model"
awk -v out="$data/shop" -f tools/recommend/rows.awk "$data/shop.txt" "$data/shop.visits"
make_data() { # RECIPE ROWS
    ./dtrain-data --force --format minionerec --tokenizer "$data/model" --index "$data/shop.index.json" --items "$data/shop.item.json" --template input/recommend.json \
        --recipe "$1" -o "$data/$1-$2.h5" "$data/shop.$2.csv"
}
make_data sft train && make_data rl train && make_data eval test

say "fine-tuning on next items and on titles"
train recommend-sft sft run.epochs="$epochs" model.path="$data/model" data.train="$data/sft-train.h5" batch.train_batch_size=16 batch.micro_batch_size=8 \
    optimizer.lr=7e-4 optimizer.betas="0.9, 0.95"
evaluate sft

say "reinforcement learning with beam search (8 items) and MiniOneRec's rewards"
train recommend-rl grpo run.max_steps="$steps" model.path="$runs/recommend-sft/hf" data.train="$data/rl-train.h5" rec.catalogue="$data/shop.txt" grpo.rollout=beam \
    grpo.num_generations=8 grpo.reward_funcs="rec_rule, rec_rank" batch.train_batch_size=1024 batch.micro_batch_size=64 optimizer.lr=1e-4 \
    scheduler.warmup_ratio=0.1 log.rollouts=false log.completions=0
evaluate rl

say "hit rate: how often the next item is among the first K"
{
    awk -f tools/recommend/baselines.awk "$data/shop.txt" "$data/shop.train.csv" "$data/shop.test.csv"
    for model in sft rl; do
        grep -o '"rec/[hn][^,}]*' "$runs/recommend-$model-test/metrics.jsonl" |
            awk -F'[":/@ ]+' -v OFS='\t' -v model=$model '$3 == "hr" { hr = $5 } $3 == "ndcg" { print model, $4, hr, $5 }'
    done
} >"$data/measured.txt"
awk -F'\t' '{ hr[$1, $2] = $3; ndcg[$1, $2] = $4 }
    function row(name, what) { printf "%-22s %7.3f %7.3f %7.3f %7.3f %8.3f\n", name, hr[what, 1], hr[what, 5], hr[what, 10], hr[what, 20], ndcg[what, 10] }
    END { printf "%-22s %7s %7s %7s %7s %8s\n", "", "HR@1", "HR@5", "HR@10", "HR@20", "NDCG@10"
          row("random", "random"); row("most popular", "popular"); row("after the last item", "next"); row("fine-tuning", "sft"); row("reinforcement", "rl") }' \
    "$data/measured.txt" | tee "$data/table.txt"

say "the plot"
sed -n 's|.*"step": *\([0-9]*\).*"grpo/rewards/rec_rule/mean": *\([-+0-9.e]*\).*|\1 \2|p' "$runs/recommend-rl/metrics.jsonl" | awk '{ print $1, 8 * $2 }' >"$data/reward.txt"
if command -v gnuplot >/dev/null; then
    gnuplot -e "data='$data'" tools/recommend/picture.gp >"$data/recommend.svg"
    echo "$data/recommend.svg"
else
    echo "gnuplot not found: no plot"
fi

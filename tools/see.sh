#!/bin/bash
# see.sh - trains a vision-language model from scratch, on two ranks, in some minutes
# (docs/vision.md): generates images (tools/see/shapes.awk), trains a small language model on
# descriptions, aligns a vision tower and projector with it, fine-tunes on questions, and answers
# questions about unseen combinations. Writes a table, a contact sheet and a plot of answers to
# runs/see-data. IMAGES, TESTS, SEED: of the data; tools/example.sh describes other variables.
. "$(dirname "$0")/example.sh"
images=${IMAGES:-4000} tests=${TESTS:-400} seed=${SEED:-1}
data=$runs/see-data
rm -rf "$data"
mkdir -p "$data"
common="run.seed=$seed"

ask() { # RUN: answer the test questions
    $MPIRUN -np "$np" ./dtrain-generate "$runs/$1/hf" --prompts "$data/test.jsonl" --greedy --max-new-tokens 12 --jsonl -o "$data/$1.jsonl" --force
}

say "$images training images and $tests test images, with questions and answers"
LC_ALL=C awk -v out="$data" -v images="$images" -v tests="$tests" -v seed="$seed" -f tools/see/shapes.awk
head -3 "$data/texts.txt"
./dtrain-data --force --documents lines -o "$data/texts.h5" "$data/texts.txt"

say "pretraining a language model on such texts; its vision tower stays random"
train see-base vision run.task=pretrain run.max_steps=300 vision.train=llm data.train="$data/texts.h5" optimizer.lr=2e-3

say "datasets with images"
for set in captions questions; do
    ./dtrain-data --force --tokenizer "$runs/see-base/hf" --images "$runs/see-base/hf" --image-token '#' -o "$data/$set.h5" "$data/$set.jsonl"
done
./dtrain-data show --tokenizer "$runs/see-base/hf" "$data/questions.h5" 0
./dtrain-info --images "$data/sheet.png" --n-images 100 "$data/captions.h5"

say "alignment: training tower and projector to describe images, and the language model with a lower rate"
train see-align vision run.max_steps=700 model.config= model.tokenizer= model.path="$runs/see-base/hf" data.train="$data/captions.h5" optimizer.lr_groups=language_model:3e-4
ask see-align

say "fine-tuning of projector and language model on questions; the tower is frozen"
train see-sft vision run.max_steps=400 model.config= model.tokenizer= model.path="$runs/see-align/hf" vision.train=projector,llm data.train="$data/questions.h5" \
    optimizer.lr=5e-4
ask see-sft

say "correct answers about $tests images of unseen combinations"
answers() { awk -v what="$1" -f tools/see/answers.awk "$data/test.jsonl" "$data/see-align.jsonl" "$data/see-sft.jsonl" "$data/test.svg"; }
answers table | tee "$data/table.txt"
answers picture >"$data/answers.svg"
say "results"
printf '%s  %s\n' "$data/table.txt" "the table above; figures vary slightly between processors" "$data/sheet.png" "100 training images, as the tower receives them" \
    "$data/answers.svg" "images of the test and the answers of the fine-tuned model, wrong ones in red"
printf 'to ask the model: ./dtrain-generate %s --prompt "#. How many? " --image %s --greedy\n' "$runs/see-sft/hf" "$data/$(sed -n '1s/.*"image": *"\([^"]*\)".*/\1/p' "$data/test.jsonl")"

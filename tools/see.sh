#!/bin/bash
# see.sh - a vision-language model from nothing, on two ranks, in some minutes (docs/vision.md): images that a script draws (tools/see/shapes.awk), a small language model on bytes
# that reads texts of their kind, a tower and a projector that learn to tell it what is on an image, fine-tuning on questions, and answers about images of combinations
# that no training has seen. Leaves a table, a sheet of images and a picture of answers in runs/see-data. IMAGES, TESTS, SEED: of the data; tools/example.sh has others.
. "$(dirname "$0")/example.sh"
images=${IMAGES:-4000} tests=${TESTS:-400} seed=${SEED:-1}
data=$runs/see-data
rm -rf "$data"
mkdir -p "$data"
common="run.seed=$seed"

ask() { # RUN: its answers to the questions of the test
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

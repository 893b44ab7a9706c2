#!/bin/bash
# chat.sh [MODEL] - fine-tunes a Hugging Face model directory on chats (input/chat.jsonl), on two
# ranks (input/chat.ini), and exports a directory. Then dtrain and, if Python has transformers
# (PYTHON=...), transformers continue the same prompt with the result. Without MODEL a small one is
# trained first, in a minute: on bytes, from random weights; it only answers what it was trained on.
# CHATS=file.jsonl: other chats.
. "$(dirname "$0")/example.sh"
python=${PYTHON:-python3} chats=${CHATS:-input/chat.jsonl} model=${1:-}
question="What is a rank?" system="You answer questions about clusters in one or two sentences."
data=$runs/chat-data
mkdir -p $data

if [ -z "$model" ]; then
    say "pretraining a small model"
    model=$runs/chat-base
    rm -rf $model
    ./dtrain-data --force --template plain --kind tokens -o $data/base.h5 "$chats"
    train chat-pretrain demo run.max_steps=100 data.train=$data/base.h5 data.validation= data.validation_steps=0 model.hidden_size=128 \
        model.intermediate_size=384 model.num_hidden_layers=4 batch.micro_batch_size=4 checkpoint.save_steps=0
    ./dtrain-convert $runs/chat-pretrain $model
    settings="optimizer.lr=1e-3 run.epochs=40 $settings"
fi

say "the chats as token ids"
./dtrain-data --force --tokenizer "$model" --template auto -o $data/train.h5 "$chats"
./dtrain-data show $data/train.h5 0 --tokenizer "$model"

say "fine-tuning on $np ranks: $MPIRUN -np $np ./dtrain input/chat.ini model.path=$model $settings"
train chat chat data.train=$data/train.h5 model.path="$model"

say "dtrain: $question"
echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}]}" >$data/question.jsonl
./dtrain-generate $runs/chat/hf --system "$system" --prompts $data/question.jsonl --greedy --max-new-tokens 100 --jsonl -o $data/answer.jsonl --force
sed 's/.*"text":"\([^"]*\)".*/\1/' $data/answer.jsonl

say "transformers: the same question"
if "$python" -c 'import transformers' 2>/dev/null; then
    "$python" tools/open_elsewhere.py $runs/chat/hf $data/answer.jsonl
else
    echo "transformers not found; after installing it, run: python tools/open_elsewhere.py $runs/chat/hf $data/answer.jsonl"
fi

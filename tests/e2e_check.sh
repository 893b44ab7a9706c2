#!/bin/bash
# e2e_check.sh - dtrain --check reports every error of a configuration in one pass and writes nothing. A run reports the same errors before
# its first step.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
check() { run "${np:-0}" ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/x" "$@"; }
errors() { grep -ac 'error: ' "$out"; }
finds() { # NAME CODE N REGEX...: --check's last run found N mistakes, one for each expression
    local name=$1 want=$2 n=$3 missing=
    shift 3
    for regex; do grep -aqE -- "error: .*$regex" "$out" || missing="$missing $regex"; done
    if [ "$code" != "$want" ]; then not_ok "$name" "exit code $code, expected $want"
    elif [ "$(errors)" != "$n" ]; then not_ok "$name" "$(errors) mistakes are told, expected $n"
    elif [ -n "$missing" ]; then not_ok "$name" "no line matches$missing"
    else ok "$name"; fi
}

ends "a valid configuration passes" 0 check
expect "no file is written" sh -c "[ ! -e $tmp/x ] && [ -z \"\$(find $tmp -name '.dtrain-probe*')\" ]"

# Without an input file the device alone is looked at.
ends_saying "a device alone passes" 0 "^check passed: device .*, 1 thread" run 2 ./dtrain --check run.threads=1
DTRAIN_DEVICE=queue prints "--check runs the self-check of the device" "^self-check: [0-9]+ tests agree with the CPU" run 1 ./dtrain --check run.device=cpu
DTRAIN_FAULT=device.self_check:1:1:error DTRAIN_DEVICE=queue DTRAIN_QUEUE_DEVICES=2 run 2 ./dtrain --check run.device=cpu
expect_exit "an error on one rank of two ends both" 70
run 2 ./dtrain --check run.devise=cpu run.threads=0 optimizer.lr=x
finds "mistakes of settings without a file" 64 2 'run.devise' 'optimizer.lr'
prints "a run wants an input file" "error: .*run.device=cpu" run 0 ./dtrain run.device=cpu

# All at once: of the file, of the command line, of what they mean together, of files.
sed -e 's/^seed = .*/seed = x/' -e 's/^lr = .*/learning_rate = 1/' -e 's/^\[checkpoint\]/[checkpoints]/' "$tmp/tiny.ini" >"$tmp/bad.ini"
set -- run.output_dir=/proc/dtrain/x log.report_to=wandb,jsonl batch.train_batch_size=25 batch.micro_batch_size=2 lr=1e-3 \
    data.validation="$tmp/missing.h5" model.tokenizer="$tmp/nowhere" optimizer.betas=0.9 run.device=cuda
for what in --check ""; do
    for np in 1 2; do
        run $np ./dtrain $what "$tmp/bad.ini" "$@"
        finds "every mistake at once ($([ -n "$what" ] && echo check || echo run), $np ranks)" 64 11 \
            'bad.ini:[0-9]+: \[run\] seed: expected an integer' 'bad.ini:[0-9]+: \[optimizer\] learning_rate.*lr in \[optimizer\]' \
            'bad.ini:[0-9]+: \[checkpoints\]: unknown section' 'did you mean optimizer.lr=1e-3' 'run.output_dir: cannot write in /proc' \
            'log.report_to: .*wandb' 'train_batch_size = 25 is not a multiple' 'missing.h5' 'optimizer.betas' \
            'run.device.*cuda' 'nowhere'
    done
done

# A key with an error causes no further errors: its default is not checked against other keys.
grep -v '^train = ' "$tmp/tiny.ini" >"$tmp/no-data.ini"
run 0 ./dtrain --check "$tmp/no-data.ini" data.trian="$tmp/train.h5" run.output_dri="$tmp/x" batch.micro_batch_sizes=3 model.hiden_size=3
finds "misspelt keys are not missed as well" 64 4 'data.trian' 'run.output_dri' 'batch.micro_batch_sizes' 'model.hiden_size'

# Each of these was once a run that failed after its check had passed.
check log.report_to=wandb
finds "report_to" 64 1 'report_to.*wandb'
check run.output_dir=/proc/x
finds "an output_dir that cannot be written" 64 1 'cannot write in /proc'
touch "$tmp/file"
check run.output_dir="$tmp/file/x/y"
finds "an output_dir below a file" 64 1 "output_dir: expected a directory.*$tmp/file is neither"
check data.train="$tmp/missing-1.h5, $tmp/missing-2.h5"
finds "every missing file" 65 2 missing-1 missing-2
check data.train="$tmp/missing-1.h5" optimizer.betas=2
finds "configuration before data" 64 2 missing-1 betas
check model.hidden_size=16384 model.num_hidden_layers=400 model.intermediate_size=65536 model.num_attention_heads=64 model.num_key_value_heads=64
finds "a model that fits neither memory nor disk" 70 2 'per rank, and .* is free' 'a checkpoint of this model needs .* is free'
check zero.stage=auto model.hidden_size=16384 model.num_hidden_layers=400 model.intermediate_size=65536 model.num_attention_heads=64 model.num_key_value_heads=64
expect_exit "at any stage" 74
train 1 done run.max_steps=1
check run.output_dir="$tmp/done" checkpoint.resume=none
finds "resume = none with existing checkpoints" 64 1 'resume: none, but'
check checkpoint.export=hf model.tokenizer="$tmp/nowhere"
finds "no tokenizer to export" 65 1 'model.tokenizer'
check run.time_limit=1:99:00
finds "an invalid time limit" 64 1 'run.time_limit'
ends_saying "a warm-up as long as the run passes" 0 'warning: \[scheduler\]: the warm-up takes 6 steps, but the run has only 6' check scheduler.warmup_steps=6
prints "validation_steps without data.validation: a warning" 'warning: \[data\] validation_steps' check data.validation_steps=2
prints "seq_len beyond max_position_embeddings: a warning" 'warning: .*seq_len = 32 exceeds max_position_embeddings = 16' check model.max_position_embeddings=16
check data.train="$tmp/text.txt"
finds "text as data: how to make a dataset of it" 65 1 'text.txt: expected a dataset, found text; convert it with `dtrain-data -o train.h5'
check model.path=Qwen/Qwen2.5-0.5B
finds "a name of the hub: how to fetch it" 65 1 'dtrain does not download models: .*hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B'
check model.path=models/no-such-model
finds "a local place for a model is not taken for a name of the hub" 65 1 'hf download OWNER/no-such-model --local-dir models/no-such-model'
check model.path=runs/no-such-run
finds "nor is a run" 65 1 'no-such-run: No such file or directory; expected a directory with config.json'
mkdir "$tmp/nothing"
check model.path="$tmp/nothing"
finds "an empty directory is no model" 65 1 'nothing: expected a model .config.json and model.safetensors. or checkpoints'
prints "adapters without a model: a warning" 'warning: .*a base with random weights' check lora.r=2
check data.validation_steps=0
expect "validation_steps = 0 asks for nothing: no warning" sh -c "! grep -q 'validation_steps' '$out'"
np=3 check batch.train_batch_size=25
finds "one message on several ranks" 64 1 'use 24 or 27, the nearest multiples'
ends_saying "sft on a dataset of kind tokens passes" 0 'warning: \[data\] train: files of kind tokens .* trains on every token' check run.task=sft
full_only

# where states are offloaded to
nvme="zero.stage=1 zero.offload_optimizer=nvme"
for np in 1 2; do
    np=$np check $nvme zero.nvme_path="$tmp/nowhere"
    finds "a missing nvme_path ($np ranks)" 74 1 "command line: zero.nvme_path: $tmp/nowhere: cannot create a file for offloaded states: No such file"
done
check $nvme zero.nvme_path="$tmp/file"
finds "an nvme_path that is a file" 74 1 "zero.nvme_path: $tmp/file: .*Not a directory"
check zero.stage=auto zero.offload_optimizer=nvme zero.nvme_path="$tmp/nowhere"
finds "an nvme_path that auto needs" 74 1 "zero.nvme_path: $tmp/nowhere"
ends "one that auto does not need" 0 check zero.stage=auto zero.nvme_path="$tmp/nowhere"
check zero.stage=1 zero.offload_param=nvme
finds "offload_param without stage 3 and without nvme_path" 64 2 'offload_param: nvme needs zero.nvme_path' 'offload_param: parameters can be offloaded only with zero.stage = 3'
check batch.train_batch_size=9223372036854775807
finds "a batch size that no number of ranks would use up" 64 1 'train_batch_size: expected an integer from 0 to 1000000000000000'
# what a save would replace, found before the first step
for kind in latest best; do
    mkdir -p "$tmp/odd-$kind/checkpoints"
    if [ $kind = best ]; then mkfifo "$tmp/odd-$kind/checkpoints/$kind"; else mkdir "$tmp/odd-$kind/checkpoints/$kind"; fi
    for mode in --check ''; do
        ends "checkpoints/$kind is no file: 74 ($mode)" 74 run 0 ./dtrain $mode "$tmp/tiny.ini" run.output_dir="$tmp/odd-$kind"
        expect_text "the path is named ($mode)" "odd-$kind/checkpoints/$kind: expected a regular file or no file"
        expect "no step is run ($mode)" test ! -e "$tmp/odd-$kind/metrics.jsonl"
    done
done
# directories that are made at the end: no file, no link to nowhere
mkdir "$tmp/end-adapter" "$tmp/end-hf" && : >"$tmp/end-adapter/adapter" && ln -s nowhere "$tmp/end-hf/hf"
for kind in adapter hf; do
    for mode in --check ''; do
        ends "$kind is no directory: 74 ($mode)" 74 run 2 ./dtrain $mode "$tmp/tiny.ini" run.output_dir="$tmp/end-$kind" lora.r=2 checkpoint.export=hf
        expect_text "the path is named ($mode)" "error: $tmp/end-$kind/$kind: expected a directory or an unused name"
        expect "no step is run ($mode)" test ! -e "$tmp/end-$kind/metrics.jsonl"
    done
done
ends "no check of the path without an export" 0 run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/end-adapter"
# targets beyond data.seq_len: prompts of 30 bytes with answers of 20 bytes and an end; another file has one answer of 2
seq 1 9 | sed 's/.*/{"prompt": "qqqqqqqqqqqqqqqqqqqqqqqqqqqqqq", "completion": "aaaaaaaaaaaaaaaaaaa&"}/' >"$tmp/cut.jsonl"
echo '{"prompt": "qqqqqqqqqqqqqqqqqqqqqqqqqqqqqq", "completion": "aa"}' >>"$tmp/cut.jsonl"
data --force -o "$tmp/cut.h5" "$tmp/cut.jsonl"
cuts() { # NAME PACKING SEQ_LEN WORDS
    for mode in --check ''; do
        run 2 ./dtrain $mode "$tmp/tiny.ini" run.output_dir="$tmp/cut" run.max_steps=1 batch.train_batch_size=2 batch.micro_batch_size=1 run.task=sft \
            data.train="$tmp/cut.h5" data.packing=$2 data.seq_len=$3
        is "$1 ($mode)" "$code $(grep -ac 'data.seq_len = ' "$out") $(grep -ao 'cut.h5: data.seq_len = .*' "$out")" "$4"
        rm -rf "$tmp/cut"
    done
}
cuts "answers that are cut" none 40 "0 1 cut.h5: data.seq_len = 40 truncates 9 of its 10 samples, which loses 99 of their 189 targets"
cuts "and where they are packed" bfd 40 "0 1 cut.h5: data.seq_len = 40 truncates 9 of its 10 samples, which loses 99 of their 189 targets"
cuts "none" none 51 "0 0 "
data --force --documents lines -o "$tmp/cut.h5" "$tmp/text.txt"
run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/cut" data.train="$tmp/cut.h5" data.packing=bfd data.seq_len=100
expect_text "truncated documents are reported" 'cut.h5: data.seq_len = 100 truncates 60 of its 60 samples, which loses [0-9]+ of their [0-9]+ targets'
run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/cut" data.train="$tmp/cut.h5" data.packing=bfd_split data.seq_len=100
expect "split documents lose no target" sh -c "! grep 'are lost' '$out'"
# a model of which only the family is given
printf '[run]\ntask = pretrain\n[model]\nmodel_type = llama\n' >"$tmp/family.ini"
prints "model_type without sizes: the default sizes are reported" 'model_type = llama without sizes .*hidden_size 4096, num_hidden_layers 32' run 0 ./dtrain --plan "$tmp/family.ini"
run 0 ./dtrain --plan "$tmp/family.ini" model.hidden_size=64
expect "no warning about sizes if one is given" sh -c "! grep 'without sizes' '$out'"
e2e_done

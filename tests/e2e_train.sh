#!/bin/bash
# e2e_train.sh - losses and weights do not depend on the number of ranks or the ZeRO stage; sft, eval, plan and check.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }

ends "one rank trains" 0 train 1 ref
expect "the loss falls" sh -c "sed -n 's/.*\"loss\": *\\([0-9.]*\\).*/\\1/p' $tmp/ref/metrics.jsonl | awk 'NR == 1 { a = \$1 } { b = \$1 } END { exit !(b < 0.9 * a) }'"

# Sums in another order: fp32 rounding (6e-8) grows through 6 steps at a high learning rate; 1e-5 is some hundred roundings.
for np in 1 2 3 4 8; do
    for stage in 0 1 2 3; do
        train "$np" "n$np-s$stage" zero.stage=$stage
        if [ "$code" = 0 ]; then expect "losses of $np ranks at stage $stage" close_losses ref "n$np-s$stage" 1e-5
        else not_ok "losses of $np ranks at stage $stage" "exit code $code"; fi
    done
    rm -rf "$tmp/n$np"-*
done

ends "bf16 trains" 0 train 1 bf16-ref precision.dtype=bf16
for stage in 0 1 2 3; do
    train 3 "bf16-s$stage" precision.dtype=bf16 zero.stage=$stage
    # 24 micro-batches accumulate in fp32: what differs is the order of sums, and bf16 parameters that round to the neighbour now and then
    expect "bf16 losses of 3 ranks at stage $stage" close_losses bf16-ref "bf16-s$stage" 2e-3
done

# awkward sizes
ends "5 ranks, batches that do not divide the data" 0 train 5 uneven batch.train_batch_size=35 batch.micro_batch_size=7 run.max_steps=12 data.shuffle=true zero.stage=3
train 16 wide run.max_steps=2 batch.train_batch_size=0 batch.micro_batch_size=1 zero.stage=3 data.train="$tmp/valid.h5" data.seq_len=600 model.max_position_embeddings=600
expect_exit "16 ranks and fewer samples than ranks" 0
for opt in model.activation_checkpointing=block zero.reduce_bucket_size=1000 zero.allgather_bucket_size=777 comm.shared_memory=false zero.prefetch_bucket_size=0 zero.overlap_comm=false; do
    train 2 option zero.stage=3 $opt
    expect "same losses with $opt" close_losses ref option 1e-5
    rm -rf "$tmp/option"
done

# sft, validation, eval
printf '{"prompt": "two and two is ", "completion": "four"}\n{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]}\n{"instruction": "name a colour", "output": "red"}\n' >"$tmp/records.jsonl"
expect "records become a dataset" ./dtrain-data -o "$tmp/sft.h5" "$tmp/records.jsonl"
train 2 sft run.task=sft model.path="$tmp/ref" data.train="$tmp/sft.h5" data.seq_len=64 batch.train_batch_size=2 run.max_steps=3 data.validation="$tmp/sft.h5"
expect_exit "sft from a checkpoint on 2 ranks" 0
expect "validation is in the metrics" grep -q '"validation_loss"' "$tmp/sft/metrics.jsonl"
for np in 1 3; do
    ends "eval on $np ranks" 0 run $np ./dtrain "$tmp/tiny.ini" run.task=eval model.path="$tmp/ref" data.validation="$tmp/valid.h5" run.output_dir="$tmp/eval$np"
done
full_only

# steps that make the weights a hundred times as large each: they stay finite in fp32, and are not in fp16
train 1 huge run.max_steps=4 optimizer.lr=10 optimizer.max_grad_norm=0 optimizer.weight_decay=10 scheduler.type=constant scheduler.warmup_steps=0
run 3 ./dtrain "$tmp/tiny.ini" run.task=eval model.path="$tmp/huge" data.validation="$tmp/valid.h5" run.output_dir= precision.dtype=fp16
expect_exit "an evaluation that is not finite: 71 on 3 ranks" 71
expect "one rank reports the non-finite loss" test "$(grep -c 'is not finite' "$out")" = 1
for np in 5 16; do # batch sizes of the training say nothing about an evaluation
    run $np ./dtrain "$tmp/tiny.ini" run.task=eval model.path="$tmp/ref" data.validation="$tmp/valid.h5" run.output_dir= log.report_to=jsonl
    expect_exit "eval on $np ranks, which do not divide the batch" 0
    expect_text "the validation loss is printed if nothing else reports it" "validation loss [0-9]"
done
expect "eval counts each sample once whatever the ranks" sh -c "grep -o '\"validation_loss\": *[0-9.]*' $tmp/eval1/metrics.jsonl > $tmp/.e1; grep -o '\"validation_loss\": *[0-9.]*' $tmp/eval3/metrics.jsonl | cmp - $tmp/.e1"

train 1 noclip optimizer.max_grad_norm=0
train 1 negative optimizer.max_grad_norm=-1
expect "max_grad_norm below 0 does not clip either" close_losses noclip negative 0

# plan and check
planned() { # NP RANKS ARGS...: the rows of --plan --ranks RANKS and of a run on NP ranks
    local np=$1 ranks=$2 stage=$3
    shift 3
    ./dtrain --plan --ranks "$ranks" "$tmp/tiny.ini" run.output_dir="$tmp/x" "$@" 2>/dev/null | grep -m 1 "^$stage  " | cut -c 10-74
    rm -rf "$tmp/planned"
    $MPIRUN -np "$np" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/planned" run.max_steps=1 zero.stage="$stage" "$@" 2>&1 | grep "^allocated " | cut -c 10-74
}
for threads in 0 2; do
    planned 2 2 "$((threads + 1))" run.threads=$threads >"$tmp/.plan"
    expect "--plan is what a run allocates, run.threads = $threads" sh -c "[ \$(wc -l <$tmp/.plan) = 2 ] && [ \$(uniq $tmp/.plan | wc -l) = 1 ] || { cat $tmp/.plan; exit 1; }"
done
places() { awk -v row="$1" '!/^  / { on = $1 == row } on && /^  (device|pinned|host) /' | cut -c 1-74; }
DTRAIN_DEVICE=queue ./dtrain --plan --ranks 2 "$tmp/tiny.ini" run.output_dir="$tmp/x" 2>/dev/null | places 2 | head -3 >"$tmp/.plan"
rm -rf "$tmp/planned"
DTRAIN_DEVICE=queue $MPIRUN -np 2 ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/planned" run.max_steps=1 zero.stage=2 2>/dev/null | places allocated >"$tmp/.run"
expect "in each place, where they are different memories" sh -c "[ \$(wc -l <$tmp/.plan) = 3 ] && diff $tmp/.plan $tmp/.run"
ends "--plan without MPI" 0 run 0 ./dtrain --plan --ranks 4 "$tmp/tiny.ini" run.output_dir="$tmp/plan"
expect "--plan makes no files" test ! -e "$tmp/plan"
ends "--check on 2 ranks" 0 run 2 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/plan"
WORLD_SIZE=5 prints "a WORLD_SIZE that is neither ranks nor nodes: a warning" "warning: WORLD_SIZE = 5" run 2 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/plan"
WORLD_SIZE=2 run 2 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/plan"
expect "one that is: none" sh -c "! grep -q WORLD_SIZE $out"
expect "--check makes no files" test ! -e "$tmp/plan"

# ---- data of another tokenizer than the model's
tokenizers=tests/data/tokenizer
./dtrain-data -q -o "$tmp/other.h5" --tokenizer $tokenizers/qwen2 "$tmp/text.txt" >/dev/null 2>&1
run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/other" model.tokenizer=$tokenizers/llama2
expect_text "data of another tokenizer: a warning names both" "warning: .*train.h5 was encoded with the tokenizer bytes, but the model.s tokenizer, $tokenizers/llama2, is tokenizer.json:"
run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/other" model.vocab_size=1024 data.train="$tmp/train.h5,$tmp/other.h5"
expect_text "files of different tokenizers: a warning" "warning: .*train.h5 and .*other.h5 were encoded with different tokenizers"
run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/other" model.vocab_size=1024 model.tokenizer=$tokenizers/qwen2 data.train="$tmp/other.h5"
expect "data of the model's tokenizer: no warning" test -z "$(grep -i tokenizer "$out" | grep warning)"
# what is counted, and where paths start from
prints "packed rows: documents and rows" 'train: 60 documents in [0-9]+ rows, [0-9]+ tokens' train 2 packed data.packing=bfd data.validation="$tmp/valid.h5" run.max_steps=2
expect_text "of the validation, too" 'validation: 12 documents in [0-9]+ rows'
expect_text "tokens per second of several ranks are said to be so" 'tokens/s on average \(all ranks together\)'
cp "$tmp/train.h5" "$tmp/start.h5"
(cd "$tmp" && "$OLDPWD/dtrain" tiny.ini data.train=start.h5 run.output_dir=relative run.max_steps=2 >"$out" 2>&1)
expect "config.ini has full paths" grep -q "^train = $tmp/start.h5$" "$tmp/relative/config.ini"
(cd / && "$OLDPWD/dtrain" "$tmp/relative/config.ini" run.output_dir="$tmp/relative2" >"$out" 2>&1)
code=$?
expect_exit "a run is reproduced from any folder by its config.ini" 0
is "with the same losses" "$(losses relative2)" "$(losses relative)"
# a directory that is removed under a run
DTRAIN_FAULT=save.create:0:1:stop start 1 removed; removed=$job
wait_until_stopped removed 1
pid=$(ranks_of removed)
rm -rf "$tmp/removed"
kill -CONT $pid
ends "an output_dir that is removed before a checkpoint is written" 74 finish removed $removed
expect_text "is said to be gone" 'step-00000006.h5.part: .*its directory does not exist; was it removed'
e2e_done

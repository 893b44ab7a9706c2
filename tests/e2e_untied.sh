#!/bin/bash
# e2e_untied.sh - lora.modules_to_save = lm_head on a model that ties its head to the embedding: the run has a head of its own, as in PEFT. Bits do
# not depend on ranks, stage, offload and resuming. e2e_lora.sh compares steps with PEFT's, e2e_peft.sh opens such adapters of PEFT.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
data -o "$tmp/sft.h5" tests/data/lora/sft.jsonl
base=tests/data/lora/gpt2
untied() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    run "$np" ./dtrain /dev/stdin run.task=sft run.output_dir="$tmp/$dir" run.max_steps=4 run.threads=1 model.path=$base data.train="$tmp/sft.h5" \
        data.seq_len=64 data.shuffle=false batch.train_batch_size=12 batch.micro_batch_size=1 optimizer.lr=1e-2 scheduler.type=constant \
        run.reproducible=true log.report_to=jsonl checkpoint.save_steps=0 lora.r=2 lora.modules_to_save=lm_head "$@"
}
prints "the head's copy is reported" "ties the head to the embedding; because lora.modules_to_save trains one of them by itself" untied 1 bits checkpoint.export=hf
expect_exit "the run ends well" 0
is "the first loss is the model's own" "$(number bits loss | head -1 | cut -c1-8)" "$(untied 1 tied lora.modules_to_save= run.max_steps=1; number tied loss | cut -c1-8)"
# a head that the files have although the configuration ties it is stale: it is not read
if command -v python3 >/dev/null; then
    cp -r $base "$tmp/stale"
    python3 - "$tmp/stale/model.safetensors" <<'END'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
head, values = json.loads(data[8:8 + n]), data[8 + n:]
like = next(t for name, t in head.items() if name.endswith("wte.weight"))
size = like["data_offsets"][1] - like["data_offsets"][0]
head["lm_head.weight"] = dict(like, data_offsets=[len(values), len(values) + size])
text = json.dumps(head).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + values + bytes(size))
END
    untied 1 stale model.path="$tmp/stale" run.max_steps=1
    expect_exit "files with a stale head are read" 0
    is "the head comes from the embedding" "$(number stale loss)" "$(number bits loss | head -1)"
else skip "a stale head" "no python3"; fi
for layout in "2 2 none none" "3 3 none none" "2 3 cpu cpu"; do
    set -- $layout
    untied "$1" "bits$1$2$3" zero.stage="$2" zero.offload_optimizer="$3" zero.offload_param="$4" checkpoint.export=hf
    expect "the same bits on $1 ranks at stage $2, offload $3 and $4" same_model "$(newest bits)" "$(newest "bits$1$2$3")"
    expect "planned memory is allocated" as_planned
done
for save in all trainable; do
    untied 2 $save checkpoint.save=$save run.max_steps=2
    untied 3 $save checkpoint.save=$save zero.stage=3 checkpoint.resume=auto
    expect_exit "resumed from checkpoints of $save weights" 0
    expect "on other ranks: the same losses" close_losses bits $save 1e-6
done
expect "the merged model has its own head" grep -q '"tie_word_embeddings": false' "$tmp/bits/hf/config.json"
run 2 ./dtrain-convert --adapter "$tmp/bits/adapter" $base "$tmp/merged" --tokenizer none
expect "dtrain-convert merges to the same model" cmp "$tmp/merged/model.safetensors" "$tmp/bits/hf/model.safetensors"
run 2 ./dtrain-convert "$tmp/bits" "$tmp/from" --tokenizer none
expect "and so from the checkpoint" cmp "$tmp/from/model.safetensors" "$tmp/bits/hf/model.safetensors"
run 2 ./dtrain "$tmp/bits/config.ini" run.output_dir="$tmp/on" lora.path="$tmp/bits/adapter" run.max_steps=1
untied 1 on-merged model.path="$tmp/bits/hf" lora.modules_to_save= lora.r=0 run.max_steps=1
expect "training continues from its adapter with the loss of the merged model" close_losses on on-merged 1e-5
table="lora.r=0 lora.modules_to_save= lora.path=tests/data/peft/table"
ends "PEFT's embedding alone: training continues" 0 untied 2 table $table run.max_steps=1
ends "without the frozen head in checkpoints it is refused" 64 untied 2 table-some $table checkpoint.save=trainable
expect_text "by name" "it would omit the head, which $base ties to the embedding that this run trains"
data -o "$tmp/pairs.h5" tests/data/rm/pairs.jsonl
untied 2 dpo run.task=dpo data.train="$tmp/pairs.h5" zero.stage=3
is "dpo: policy and reference are equal at first" "$(number dpo loss | head -1 | cut -c1-6)" 0.6931
ends "a precomputed reference, which is tied, is refused" 65 untied 2 pre run.task=dpo data.train="$tmp/pairs.h5" dpo.precompute_reference=true
expect_text "by name" "tie_word_embeddings: expected a reference of the same shape"
e2e_done

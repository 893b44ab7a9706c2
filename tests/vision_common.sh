# vision_common.sh - what every model with images does: sourced by scripts that set model (its directory), chats (records, with the ids that transformers'
# processor makes of them) and length (of samples). Those ids; the same bits on every number of ranks, at every stage of ZeRO, after a resume, when
# recomputed, and with cached features. Leaves $tmp/chats.jsonl and $tmp/chats.h5.
python3 - "$chats" "$PWD/tests/data/image/files" >"$tmp/chats.jsonl" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    del r["ids"]
    if "images" in r:
        r["images"] = [sys.argv[2] + "/" + f for f in r["images"]]
    print(json.dumps(r))
PY
expect "a dataset" ./dtrain-data -q --tokenizer $model --images $model --mask assistant -o "$tmp/chats.h5" "$tmp/chats.jsonl"
for ((i = 0; i < $(wc -l <"$chats"); i++)); do ./dtrain-data show "$tmp/chats.h5" "$i"; done >"$tmp/shown"
expect "ids are those of transformers' processor" python3 - "$chats" "$tmp/shown" <<'PY'
import json, re, sys
want = [json.loads(line)["ids"] for line in open(sys.argv[1])]
found = [list(map(int, re.findall(r"<(\d+)>", s))) for s in re.split(r"sample \d+ of", open(sys.argv[2]).read())[1:]]
assert found == want, (found, want)
PY

make_task sft run.max_steps=4 model.path=$model data.train="$tmp/chats.h5" data.shuffle=false data.seq_len=$length batch.train_batch_size=6 \
    batch.micro_batch_size=2 optimizer.lr=3e-3 run.reproducible=true vision.train=tower,projector,llm
ends "one rank" 0 train 1 ref
expect "as much memory as planned" as_planned
for case in "3 2" "3 3" "1 3"; do
    read -r np stage <<<"$case"
    train "$np" "same$np$stage" zero.stage="$stage"
    expect "$np ranks at stage $stage: as much memory as planned" as_planned
    expect "the same bits" same_model "$(newest ref)" "$(newest "same$np$stage")"
done
train 1 packed data.packing=bfd data.seq_len=$((2 * length))
expect "packed samples have the losses of separate ones" close_losses ref packed 2e-6
for recompute in block selective; do
    train 1 $recompute model.activation_checkpointing=$recompute
    expect "recomputed ($recompute): the same bits" same_model "$(newest ref)" "$(newest $recompute)"
done
train 2 stopped run.max_steps=2 batch.micro_batch_size=1
train 2 stopped run.max_steps=4 batch.micro_batch_size=1
train 2 whole batch.micro_batch_size=1
expect "a resumed run has the same bits" same_model "$(newest whole)" "$(newest stopped)"
train 2 plain vision.train=projector,llm batch.micro_batch_size=1
train 2 cached vision.train=projector,llm batch.micro_batch_size=1 vision.feature_cache="$tmp/features"
expect "cached features: the same bits" same_model "$(newest plain)" "$(newest cached)"

#!/bin/bash
# e2e_recommend.sh - task eval with a catalogue: what a search as wide as the catalogue finds is what scoring every item by the training's forward
# gives; HR@K and NDCG@K are those of the predictions; the same on any number of ranks, at any stage, for any batch; what is refused; a rank that fails.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
command -v python3 >/dev/null || { skip "recommendation" "no python3 to score items with"; exit 0; }

# Twelve SIDs of one to three levels, of fourteen items; seven users.
python3 - "$tmp" <<'PY'
import json, random, sys
tmp, rng = sys.argv[1], random.Random(5)
sids = sorted({"".join("<%s%d>" % (l, rng.randrange(3)) for l in "abc"[:1 + i % 3]) for i in range(40)})[:12]
items = sids + [sids[3], sids[7]]
rng.shuffle(items)
with open(tmp + "/items.txt", "w") as f:
    for i, sid in enumerate(items):
        f.write("%s\tTitle %d\t%d\n" % (sid, i, 100 + i))
prompts = ["u%d\n### Response:\n" % u for u in range(7)]
with open(tmp + "/users.jsonl", "w") as f, open(tmp + "/all.jsonl", "w") as every:
    for u, prompt in enumerate(prompts):
        f.write(json.dumps({"prompt": prompt, "answer": rng.choice(sids) if u != 4 else "<none>"}) + "\n")
        ids = [list((sid + "\n").encode()) + [256] for sid in sids]
        every.write(json.dumps({"prompt_ids": list(prompt.encode()), "completion_ids": ids, "rewards": [[0]] * len(sids)}) + "\n")
PY
data -o "$tmp/users.h5" "$tmp/users.jsonl"
data -o "$tmp/train.h5" "$tmp/users.jsonl"
make_task eval model.tokenizer=bytes data.validation="$tmp/users.h5" rec.catalogue="$tmp/items.txt" rec.num_beams=14

# Log-probabilities of all items behind all prompts, by the forward that training has, as the reference's of given completions.
run 1 ./dtrain "$tmp/tiny.ini" run.task=grpo run.output_dir="$tmp/all" run.max_steps=1 data.validation= rec.catalogue= grpo.rollouts="$tmp/all.jsonl" grpo.beta=0.1 \
    grpo.num_generations=12 grpo.max_completion_length=20 batch.train_batch_size=84 batch.micro_batch_size=12 data.shuffle=false log.rollouts=true
expect_exit "every item is scored" 0

cat >"$tmp/check.py" <<'PY'
import json, math, sys
tmp, dir, width = sys.argv[1], sys.argv[2], int(sys.argv[3])
records = json.load(open("%s/%s/predictions.json" % (tmp, dir)))
users = [json.loads(x) for x in open(tmp + "/users.jsonl")]
scored = [json.loads(x) for x in open(tmp + "/all/rollouts.jsonl")]
last = [json.loads(x) for x in open("%s/%s/metrics.jsonl" % (tmp, dir)) if "rec/hr@1" in x][-1]
items = {x.split("\t")[0] for x in open(tmp + "/items.txt")}
assert len(records) == len(users) == len(scored) == 7
ranks = []
for r, u, s in zip(records, users, scored):
    assert r["input"] == u["prompt"] and r["output"] == u["answer"], r
    assert len(set(r["predict"])) == len(r["predict"]) == min(width, 12) and set(r["predict"]) <= items, r
    logp = {bytes(c[:-2]).decode(): sum(x) for c, x in zip(s["completion_ids"], s["ref_logp"])}
    best = sorted(logp, key=lambda sid: -logp[sid])
    if width >= 12: # whole: in the order of the scores, but for those that rounding cannot tell apart
        for a, b in zip(r["predict"], best):
            assert abs(logp[a] - logp[b]) < 1e-4, (r, logp)
    ranks.append(r["predict"].index(u["answer"]) if u["answer"] in r["predict"] else None)
for k in (1, 3, 5, 10, 20, 50):
    if k > width: # nine digits are told
        assert "rec/hr@%d" % k not in last
        continue
    hr = sum(r is not None and r < k for r in ranks) / 7
    ndcg = sum(1 / math.log2(r + 2) for r in ranks if r is not None and r < k) / 7
    assert abs(last["rec/hr@%d" % k] - hr) < 1e-8 and abs(last["rec/ndcg@%d" % k] - ndcg) < 1e-8, (k, hr, ndcg, last)
assert last["rec/outside_catalogue"] == 0 and last["rec/unknown_targets"] == 1 and last["validation_samples"] == 7
assert any(r is not None for r in ranks)
PY
says() { python3 "$tmp/check.py" "$tmp" "$@" >"$out" 2>&1; }
metrics_of() { grep -o '"rec/[^,]*' "$tmp/$1/metrics.jsonl"; }

train 1 whole
expect_exit "a catalogue is searched" 0
expect "as wide as the catalogue: the items in the order of their scores, HR@K and NDCG@K of them" says whole 14
train 1 narrow rec.num_beams=4 batch.micro_batch_size=3
expect "with four beams: items alone" says narrow 4
for layout in "2 0 1" "3 0 2" "2 3 2" "2 3 1 zero.max_live_parameters=4300"; do
    read -r np stage micro more <<<"$layout"
    train "$np" layout zero.stage="$stage" batch.micro_batch_size="$micro" $more
    expect_exit "on $np ranks at stage $stage $more" 0
    expect "$np ranks, stage $stage, $micro prompts at a time $more: the same predictions" cmp "$tmp/whole/predictions.json" "$tmp/layout/predictions.json"
    expect "and the same numbers" test "$(metrics_of whole)" = "$(metrics_of layout)"
    rm -rf "$tmp/layout"
done
train 2 planned batch.micro_batch_size=2 rec.top_k=2,7
expect "memory is as planned" as_planned
expect "any K" test "$(metrics_of planned | grep -c '@[27]"')" = 4
run 0 ./dtrain --plan --ranks 2 "$tmp/tiny.ini"
expect_exit "a plan needs no run" 0

# The same items by dtrain-generate, twelve for each prompt.
run 2 ./dtrain-generate tests/data/dpo/start --tokenizer bytes --catalogue "$tmp/items.txt" --prompts "$tmp/users.jsonl" --num-beams 14 --num-return 12 --length-penalty 0 \
    --jsonl --threads 1 -o "$tmp/generated.jsonl"
expect_exit "dtrain-generate --catalogue" 0
cat >"$tmp/generated.py" <<'PY'
import json, sys
tmp = sys.argv[1]
found = [json.loads(x)["text"] for x in open(tmp + "/generated.jsonl")]
want = [sid + "\n" for r in json.load(open(tmp + "/whole/predictions.json")) for sid in r["predict"]]
assert found == want and len(want) == 84, (found, want)
PY
expect "finds the same items" python3 "$tmp/generated.py" "$tmp"
run 0 ./dtrain-generate tests/data/dpo/start --tokenizer bytes --catalogue "$tmp/items.txt" --prompts "$tmp/users.jsonl" --num-samples 5 --temperature 2 --jsonl --threads 1 -o "$tmp/drawn.jsonl"
expect "and draws no others" python3 -c 'import json, sys
items = {x.split("\t")[0] + "\n" for x in open(sys.argv[1] + "/items.txt")}
drawn = [json.loads(x)["text"] for x in open(sys.argv[1] + "/drawn.jsonl")]
assert len(drawn) == 35 and set(drawn) <= items and len(set(drawn)) > 5, drawn' "$tmp"

wrong "a K above the beams" 64 'rec.*top_k.*from 1 to rec.num_beams = 14' ./dtrain "$tmp/tiny.ini" run.output_dir= rec.top_k=15
printf '<a>\tT\t1\nb\tT\t2\n' >"$tmp/broken.txt"
wrong "a broken line" 65 'broken.txt:2: expected a semantic ID' ./dtrain "$tmp/tiny.ini" run.output_dir= rec.catalogue="$tmp/broken.txt"
echo '{"prompt": "u"}' >"$tmp/bare.jsonl"
data -o "$tmp/bare.h5" "$tmp/bare.jsonl"
wrong "prompts without targets" 64 'expected prompts with answers' ./dtrain "$tmp/tiny.ini" run.output_dir= data.validation="$tmp/bare.h5"
wrong "no tokenizer" 64 'came without a tokenizer' ./dtrain "$tmp/tiny.ini" run.output_dir= model.tokenizer=
fails_alone 1 recommend.look 2 train 2 failed
expect "and leaves no predictions" test ! -e "$tmp/failed/predictions.json"
e2e_done

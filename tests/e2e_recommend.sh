#!/bin/bash
# e2e_recommend.sh - task eval with a catalogue. A beam as wide as the catalogue finds the scores that the training forward gives every
# item. HR@K and NDCG@K match the predictions, on any number of ranks, at any stage, for any batch. Task grpo with items as completions,
# from beam search or sampling: rewards and learning. Also: errors; a failing rank; the shop example, from texts to recommendations.
# QUICK:
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
import array, struct # embeddings, a row for each of the ids 0 .. 113: fp64 in NumPy's format
apart = random.Random(6)
rows = [[apart.gauss(0, 1) for k in range(5)] for i in range(114)]
head = "{'descr': '<f8', 'fortran_order': False, 'shape': (114, 5), }".ljust(117) + "\n"
with open(tmp + "/items.npy", "wb") as f:
    f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + head.encode() + array.array("d", sum(rows, [])).tobytes())
json.dump(rows, open(tmp + "/rows.json", "w"))
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

# Log-probabilities of all items after all prompts by the training forward, as the reference's of given completions.
score_all() { # DIR TEMPERATURE
    run 1 ./dtrain "$tmp/tiny.ini" run.task=grpo run.output_dir="$tmp/$1" run.max_steps=1 data.validation= rec.catalogue= grpo.rollouts="$tmp/all.jsonl" grpo.beta=0.1 \
        grpo.num_generations=12 grpo.max_completion_length=20 batch.train_batch_size=84 batch.micro_batch_size=12 data.shuffle=false log.rollouts=true grpo.temperature=$2
    expect_exit "every item is scored at temperature $2" 0
}
score_all all 1
score_all warm 2

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
    if k > width: # nine digits are reported
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

ends "a catalogue is searched" 0 train 1 whole
expect "its result is not called a loss" sh -c "! grep -E 'validation loss' '$out'"
expect "as wide as the catalogue: the items in the order of their scores, HR@K and NDCG@K of them" says whole 14
train 1 narrow rec.num_beams=4 batch.micro_batch_size=3
expect "with four beams: items alone" says narrow 4
for layout in "2 0 1" "3 0 2" "2 3 2" "2 3 1 zero.max_live_parameters=4300"; do
    read -r np stage micro more <<<"$layout"
    ends "on $np ranks at stage $stage $more" 0 train "$np" layout zero.stage="$stage" batch.micro_batch_size="$micro" $more
    expect "$np ranks, stage $stage, $micro prompts at a time $more: the same predictions" cmp "$tmp/whole/predictions.json" "$tmp/layout/predictions.json"
    is "and the same numbers" "$(metrics_of layout)" "$(metrics_of whole)"
    rm -rf "$tmp/layout"
done
train 2 planned batch.micro_batch_size=2 rec.top_k=2,7
expect "memory is as planned" as_planned
expect "and as --plan says" as_plan_says 2 0 batch.micro_batch_size=2
expect "any K" test "$(metrics_of planned | grep -c '@[27]"')" = 4

# A tokenizer that knows no end of a text: then generation_config.json says what ends an item, and not config.json, nor "<", the rest of the list.
python3 - "$tmp/silent" <<'PY'
import json, os, shutil, sys
shutil.copytree("tests/data/dpo/start", sys.argv[1])
def change(name, **keys):
    path = os.path.join(sys.argv[1], name)
    old = json.load(open(path)) if os.path.exists(path) else {}
    json.dump({**old, **keys}, open(path, "w"))
plain = [*range(33, 127), *range(161, 173), *range(174, 256)] # as GPT-2 writes bytes
char = {b: b for b in plain} | {b: 256 + i for i, b in enumerate(b for b in range(256) if b not in plain)}
change("tokenizer.json", added_tokens=[], normalizer=None, post_processor=None, decoder={"type": "ByteLevel"},
       pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
       model={"type": "BPE", "vocab": {chr(c): b for b, c in char.items()}, "merges": []})
other = json.load(open(sys.argv[1] + "/tokenizer.json")) # beyond this model's vocabulary
other["model"]["vocab"]["<"] = 300
json.dump(other, open(sys.argv[1] + "/other.json", "w"))
change("config.json", eos_token_id=257)
change("generation_config.json", eos_token_id=[256, 60])
PY
train 1 silent-out model.path="$tmp/silent" model.tokenizer=
expect "the end of an item is the first that the model names: the same predictions" cmp "$tmp/whole/predictions.json" "$tmp/silent-out/predictions.json"
train 2 silent-two model.path="$tmp/silent" model.tokenizer= batch.micro_batch_size=2
expect "with several ends: memory as --plan says" as_plan_says 2 0 model.path="$tmp/silent" model.tokenizer= batch.micro_batch_size=2
run 1 ./dtrain "$tmp/tiny.ini" run.task=grpo run.output_dir="$tmp/silent-given" run.max_steps=1 model.path="$tmp/silent" model.tokenizer= data.validation= grpo.rollouts="$tmp/all.jsonl" \
    grpo.num_generations=12 batch.train_batch_size=84 batch.micro_batch_size=12 data.shuffle=false log.rollouts=true
expect "and items that are given are taken whole" python3 -c 'import json, sys
of = lambda name: [json.loads(x)["completion_ids"] for x in open(name)]
assert of(sys.argv[1]) == of(sys.argv[2])' "$tmp/all.jsonl" "$tmp/silent-given/rollouts.jsonl"
run 0 ./dtrain-generate "$tmp/silent" --catalogue "$tmp/items.txt" --prompts "$tmp/users.jsonl" --num-beams 14 --num-return 12 --length-penalty 0 --jsonl --threads 1 -o "$tmp/silent.jsonl"

# The same items by dtrain-generate, twelve for each prompt.
run 2 ./dtrain-generate tests/data/dpo/start --tokenizer bytes --catalogue "$tmp/items.txt" --prompts "$tmp/users.jsonl" --num-beams 14 --num-return 12 --length-penalty 0 \
    --jsonl --threads 1 -o "$tmp/generated.jsonl"
expect_exit "dtrain-generate --catalogue" 0
cat >"$tmp/generated.py" <<'PY'
import json, sys
tmp, name = sys.argv[1:]
found = [json.loads(x)["text"] for x in open("%s/%s.jsonl" % (tmp, name))]
want = [sid + "\n" for r in json.load(open(tmp + "/whole/predictions.json")) for sid in r["predict"]]
assert found == want and len(want) == 84, (found, want)
PY
expect "finds the same items" python3 "$tmp/generated.py" "$tmp" generated
expect "and does so with a tokenizer that knows no end" python3 "$tmp/generated.py" "$tmp" silent
search=(tests/data/dpo/start --tokenizer bytes --catalogue "$tmp/items.txt" --prompts "$tmp/users.jsonl" --num-beams 14 --num-return 14 --threads 1)
ends_saying "too few tokens for any item" 64 'needs at least [0-9]+ new tokens, but prompt 0 allows 2' run 2 ./dtrain-generate "${search[@]}" --max-new-tokens 2
prints "counts the sequences that are written" '\(84 sequences' run 2 ./dtrain-generate "${search[@]}" --jsonl --force -o "$tmp/all_found.jsonl"
expect_text "and says why they are fewer" '--num-return 14: a search finds at most 12 sequences'
mkdir -p "$tmp/penalised" && cp tests/data/dpo/start/* "$tmp/penalised"
echo '{"repetition_penalty": 1.5, "length_penalty": 2.0, "min_new_tokens": 40}' >"$tmp/penalised/generation_config.json"
run 0 ./dtrain-generate "$tmp/penalised" "${search[@]:1}" --num-return 12 --jsonl -o "$tmp/penalised.jsonl"
expect_text "settings that would change the order are named" 'are ignored: repetition_penalty, length_penalty, min_new_tokens$'
expect "and the order is that of task eval" python3 "$tmp/generated.py" "$tmp" penalised
run 0 ./dtrain-generate tests/data/dpo/start --tokenizer bytes --catalogue "$tmp/items.txt" --prompts "$tmp/users.jsonl" --num-samples 5 --temperature 2 --jsonl --threads 1 -o "$tmp/drawn.jsonl"
expect "only items of the catalogue are sampled" python3 -c 'import json, sys
items = {x.split("\t")[0] + "\n" for x in open(sys.argv[1] + "/items.txt")}
drawn = [json.loads(x)["text"] for x in open(sys.argv[1] + "/drawn.jsonl")]
assert len(drawn) == 35 and set(drawn) <= items and len(set(drawn)) > 5, drawn' "$tmp"

echo '{"prompt": "u"}' >"$tmp/bare.jsonl"
data -o "$tmp/bare.h5" "$tmp/bare.jsonl"

# ---- reinforcement learning -------------------------------------------------------------------------------------------------------------------
rl_args=(run.task=grpo run.max_steps=1 data.train="$tmp/train.h5" data.validation= data.shuffle=false grpo.rollout=beam grpo.num_generations=12 batch.train_batch_size=84
    batch.micro_batch_size=12 grpo.reward_funcs="rec_rule, rec, rec_semantic" rec.item_embeddings="$tmp/items.npy" log.rollouts=true)
rl() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    run "$np" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/$dir" "${rl_args[@]}" "$@"
}
cat >"$tmp/rl.py" <<'PY'
import json, math, sys
tmp, dir, scored, beams = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "beams"
lines = [json.loads(x) for x in open("%s/%s/rollouts.jsonl" % (tmp, dir))]
items = {tuple((x.split("\t")[0] + "\n").encode()) + (256,) for x in open(tmp + "/items.txt")}
users = {tuple(json.loads(x)["prompt"].encode()): json.loads(x)["answer"] for x in open(tmp + "/users.jsonl")}
scored = {tuple(x["prompt_ids"]): {tuple(c): sum(l) for c, l in zip(x["completion_ids"], x["ref_logp"])} for x in map(json.loads, open("%s/%s/rollouts.jsonl" % (tmp, scored)))}
rows, row_of = json.load(open(tmp + "/rows.json")), {} # of several items with one SID the first counts
for sid, _, number in [x.rstrip("\n").split("\t") for x in open(tmp + "/items.txt")]:
    row_of.setdefault(sid, rows[int(number)])
dot = lambda x, y: sum(a * b for a, b in zip(x, y))
assert len(lines) == 7
# how different they are, as the metrics have it, in nine digits
metrics = [json.loads(x) for x in open("%s/%s/metrics.jsonl" % (tmp, dir)) if "rec/token_diversity" in x][-1]
groups = [[tuple(c) for c in line["completion_ids"]] for line in lines]
tokens = [id for group in groups for c in group for id in c]
want = [sum(len(set(group)) / len(group) for group in groups) / len(groups), len(set(tokens)) / len(tokens)]
for name, x in zip(("categorical", "token"), want):
    assert abs(metrics["rec/%s_diversity" % name] - x) < 1e-8, (name, x, metrics)
assert (want[0] == 1) == beams
for line in lines:
    prompt, found = tuple(line["prompt_ids"]), [tuple(c) for c in line["completion_ids"]]
    assert set(found) <= items and len(found) == 12, found
    logp = [sum(l) for l in line["logps"]]
    for c, l in zip(found, logp): # 1e-4: sums of some ten terms in fp32 by another order of operations
        assert abs(l - scored[prompt][c]) < 1e-4, (c, l, scored[prompt][c])
    if beams: # all of them, the best first
        assert set(found) == items and all(a >= b for a, b in zip(logp, logp[1:])), logp
    target = tuple((users[prompt] + "\n").encode()) + (256,)
    hit = [c == target for c in found]
    weight = [1 / math.log2(i + 2) for i in range(12)]
    for i, (rule, ranking, semantic) in enumerate(line["rewards"]):
        want = 1 if hit[i] else -weight[i] / sum(weight) if any(hit) else 0
        assert rule == hit[i] and abs(ranking - want) < 1e-6, (i, line["rewards"], hit)
        if users[prompt] not in row_of:
            assert semantic is None
            continue
        x, y = row_of[bytes(found[i][:-2]).decode()], row_of[users[prompt]]
        assert abs(semantic - dot(x, y) / math.sqrt(dot(x, x) * dot(y, y))) < 1e-6, semantic # 1e-6: rows rounded to fp32
PY
items_are() { python3 "$tmp/rl.py" "$tmp" "$@" >"$out" 2>&1; }
ends "grpo with beams" 0 rl 1 beams
expect "memory is as planned" as_planned
expect "completions are the items, best first, as every item's score says, with their rewards" items_are beams all beams
expect "the search's log-probabilities are the policy's" awk -v d="$(number beams 'grpo/sampling/sampling_logp_difference/max')" 'BEGIN { exit !(d != "" && d < 1e-4) }'
rl 1 warmer grpo.temperature=2 grpo.top_k=3 grpo.min_p=0.1
expect "sampling keys are reported as unused" test "$(grep -cE 'warning: grpo.(top_k|min_p) is not used: rollout = beam does not sample' "$out")" = 2
expect "at another temperature: by logits divided by it" items_are warmer warm beams
for layout in "2 0" "3 3"; do
    set -- $layout
    rl "$1" "beams$1" zero.stage="$2" batch.micro_batch_size=7
    is "$1 ranks, stage $2: the same groups" "$(grep -o '"completion_ids": [^a-z]*' "$tmp/beams$1/rollouts.jsonl")" "$(grep -o '"completion_ids": [^a-z]*' "$tmp/beams/rollouts.jsonl")"
    expect "and rewards" items_are "beams$1" all beams
done
rl 2 drawn grpo.rollout=sample batch.micro_batch_size=7
expect "drawn ones are items, too" items_are drawn all drawn

full_only

# Validations match those of task eval, at any temperature of the training and with any beams of it.
tests=(data.validation="$tmp/users.h5" data.validation_steps=2 run.max_steps=6 checkpoint.save_steps=2 checkpoint.load_best_model_at_end=true checkpoint.metric_for_best_model=rec/ndcg@5
    batch.micro_batch_size=3 grpo.temperature=0.1 optimizer.lr=1e-2 scheduler.type=constant)
ends "tests during training" 0 rl 2 tested "${tests[@]}"
expect "memory is as planned" as_planned
expect "--plan has said so" as_plan_says 2 0 "${rl_args[@]}" "${tests[@]}"
told_at() { grep '"validation_loss"' "$tmp/$1/metrics.jsonl" | grep "\"step\": $2," | grep -oE '"(rec/(hr|ndcg|outside|unknown)|validation_(loss|samples))[^,}]*'; }
ndcg_at() { told_at tested "$1" | sed -n 's/"rec.ndcg@5": *//p'; }
for step in 2 4 6; do
    train 1 again model.path="$tmp/tested/checkpoints/step-0000000$step.h5"
    expect "at step $step: the numbers of task eval" test "$(told_at tested $step)" = "$(grep -oE '"(rec/(hr|ndcg|outside|unknown)|validation_(loss|samples))[^,}]*' "$tmp/again/metrics.jsonl")" -a -n "$(ndcg_at $step)"
    rm -rf "$tmp/again"
done
expect "the best model is that of the largest NDCG, of equal ones the first" test "$(cat "$tmp/tested/checkpoints/best")" = "step-0000000$(for step in 2 4 6; do echo "$step $(ndcg_at $step)"; done |
    sort -s -g -r -k2 | head -1 | cut -d' ' -f1).h5"
expect "which grows" test "$(ndcg_at 2)" != "$(ndcg_at 6)" -a ! -e "$tmp/tested/predictions.json"
fails_alone 1 recommend.look 1 rl 2 failed data.validation="$tmp/users.h5" batch.micro_batch_size=6

# Targets among the completions: the last of each group, where it is an item; the policy's log-probabilities are of them, the search has none.
few=(grpo.num_generations=4 batch.train_batch_size=24 batch.micro_batch_size=2 grpo.num_iterations=2 grpo.beta=0.1 run.reproducible=true)
cat >"$tmp/truth.py" <<'PY'
import json, sys
tmp, dir, plain = sys.argv[1:]
lines, before = ([json.loads(x) for x in open("%s/%s/rollouts.jsonl" % (tmp, d))] for d in (dir, plain))
items = {x.split("\t")[0] for x in open(tmp + "/items.txt")}
users = [json.loads(x)["answer"] for x in open(tmp + "/users.jsonl")]
scored = [{tuple(c): sum(l) for c, l in zip(x["completion_ids"], x["ref_logp"])} for x in map(json.loads, open(tmp + "/all/rollouts.jsonl"))]
n_put = 0
for i in range(6):
    found, want = lines[i]["completion_ids"], before[i]["completion_ids"]
    assert found[:3] == want[:3] and lines[i]["logps"][:3] == before[i]["logps"][:3], i
    if users[i] not in items:
        assert found == want and lines[i]["logps"] == before[i]["logps"]
        continue
    n_put += found[3] != want[3]
    assert found[3] == list((users[i] + "\n").encode()) + [256] and lines[i]["rewards"][3][0] == 1
    assert lines[i]["logps"][3] == [None] * len(found[3])
    for name in ("old_logp", "ref_logp"): # 1e-4: as above
        assert abs(sum(lines[i][name][3]) - scored[i][tuple(found[3])]) < 1e-4, (name, lines[i][name][3])
assert n_put > 2 and users[4] not in items
PY
for rollout in beam sample; do
    rl 1 plain "${few[@]}" grpo.rollout=$rollout
    rl 1 truth "${few[@]}" grpo.rollout=$rollout rec.add_ground_truth=true
    expect "targets in addition to the items found by $rollout" python3 "$tmp/truth.py" "$tmp" truth plain
    expect "which is all that the gap of log-probabilities is of" awk -v d="$(number truth 'grpo/sampling/sampling_logp_difference/max')" 'BEGIN { exit !(d != "" && d > 0 && d < 1e-4) }'
    rm -rf "$tmp/plain" "$tmp/truth"
done
few+=(rec.add_ground_truth=true run.max_steps=4)

# Half as many completions again are drawn, of which some stay: random numbers are of the completion, so those that are drawn are a run's with larger groups.
cat >"$tmp/distinct.py" <<'PY'
import collections, json, sys
tmp, n = sys.argv[1], int(sys.argv[2])
lines, drawn = ([json.loads(x) for x in open("%s/%s/rollouts.jsonl" % (tmp, d))] for d in ("distinct", "more"))
users = [json.loads(x)["answer"] for x in open(tmp + "/users.jsonl")]
n_kinds, n_hits = set(), 0
for line, more, user in zip(lines, drawn, users, strict=True):
    texts = [bytes(c[:-2]).decode() for c in more["completion_ids"]]
    assert len(texts) == n * 3 // 2 and len(line["completion_ids"]) == n
    left = collections.Counter(texts)
    want = [user] * min(left.pop(user, 0), n)
    n_hits += len(want)
    while len(want) < n: # in turn, by falling number of those that were drawn; of equal ones the first that was drawn
        for text in sorted(left, key=lambda t: (-texts.count(t), texts.index(t))):
            if left[text] > 0 and len(want) < n:
                want.append(text)
                left[text] -= 1
    found = [bytes(c[:-2]).decode() for c in line["completion_ids"]]
    assert found == want, (found, want)
    logps = {(tuple(c), tuple(l)) for c, l in zip(more["completion_ids"], more["logps"])}
    assert all((tuple(c), tuple(l)) in logps for c, l in zip(line["completion_ids"], line["logps"]))
    n_kinds.add(len(set(want)))
assert n_hits > 1 and min(n_kinds) < n, (n_hits, n_kinds)
PY
drawn=(grpo.rollout=sample grpo.temperature=0.3 batch.micro_batch_size=7)
for n in 4 8; do
    rl 1 more "${drawn[@]}" grpo.num_generations=$((n * 3 / 2)) batch.train_batch_size=$((7 * n * 3 / 2))
    rl 2 distinct "${drawn[@]}" grpo.num_generations=$n batch.train_batch_size=$((7 * n)) rec.distinct_sampling=true batch.micro_batch_size=$((7 * n / 4))
    expect "memory is as planned" as_planned
    expect "of $((n * 3 / 2)) that are drawn the target's copies stay, and of the others different ones" python3 "$tmp/distinct.py" "$tmp" $n
    rm -rf "$tmp/more" "$tmp/distinct"
done
wrong "distinct_sampling with beams" 64 'distinct_sampling.*expected false with grpo.rollout = beam' ./dtrain "$tmp/tiny.ini" run.task=grpo run.output_dir="$tmp/none" data.train="$tmp/train.h5" \
    data.validation= "${few[@]}" grpo.reward_funcs=rec grpo.rollout=beam rec.distinct_sampling=true
few+=(grpo.rollout=sample rec.distinct_sampling=true grpo.dynamic_sampling=true)
rl 1 one "${few[@]}"
rl 3 parts "${few[@]}" zero.stage=3 run.max_steps=3
rl 2 parts "${few[@]}" zero.stage=2 checkpoint.resume=auto
expect "on three ranks, resumed inside a generation on two: the same bits" same_model "$(newest one)" "$(newest parts)"
for refused in "needs rec.catalogue|rec.catalogue=" "expected false with grpo.rollouts|grpo.rollouts=$tmp/all.jsonl" "expected prompts with answers|data.train=$tmp/bare.h5"; do
    wrong "targets: ${refused%|*}" 64 "add_ground_truth.*${refused%|*}" ./dtrain "$tmp/tiny.ini" run.task=grpo run.output_dir="$tmp/none" data.train="$tmp/train.h5" data.validation= \
        "${few[@]}" grpo.num_generations=12 grpo.reward_funcs=rec "${refused#*|}"
done
for point in grpo.targets grpo.choose; do fails_alone 1 $point 2 rl 2 failed "${few[@]}"; done
wrong "more completions than items" 64 'grpo.*num_generations.*the catalogue has only 12 different SIDs' ./dtrain "$tmp/tiny.ini" run.task=grpo run.output_dir= data.train="$tmp/train.h5" \
    data.validation= grpo.rollout=beam grpo.num_generations=13 batch.train_batch_size=91 batch.micro_batch_size=13 grpo.reward_funcs=rec
for layout in "item_embeddings.*rec_semantic needs the embeddings|rec.item_embeddings=" "rec_semantic compares items, so it needs rec.catalogue|rec.catalogue=" \
    "items.npy.*has no row for item 114|rec.catalogue=$tmp/more.txt"; do
    cp "$tmp/items.txt" "$tmp/more.txt" && printf '<z>\tZ\t114\n' >>"$tmp/more.txt"
    wrong "embeddings: $layout" "$([[ $layout = items* ]] && echo 65 || echo 64)" "${layout%|*}" ./dtrain "$tmp/tiny.ini" run.task=grpo run.output_dir="$tmp/none" data.train="$tmp/train.h5" data.validation= \
        grpo.num_generations=12 batch.train_batch_size=84 batch.micro_batch_size=7 grpo.reward_funcs=rec_semantic rec.item_embeddings="$tmp/items.npy" "${layout#*|}"
done
wrong "an array that the file of embeddings lacks" 65 'bare.h5.*/absent' ./dtrain "$tmp/tiny.ini" run.task=grpo run.output_dir="$tmp/none" data.train="$tmp/train.h5" data.validation= \
    grpo.num_generations=12 batch.train_batch_size=84 batch.micro_batch_size=7 grpo.reward_funcs=rec_semantic rec.item_embeddings="$tmp/bare.h5" rec.item_embeddings_array=/absent
rl 2 learned run.max_steps=60 grpo.num_generations=6 batch.train_batch_size=42 batch.micro_batch_size=7 optimizer.lr=3e-3 scheduler.type=constant log.rollouts=false grpo.reward_funcs="rec_rule, rec"
train 1 after model.path="$(newest learned)"
expect "learned: of six known targets at least five come first, of whom at most three did before" test "$(metrics_of after | sed -n 's/"rec.hr@1": *//p' | awk '{ print ($1 > 4.9 / 7) }')" = 1 \
    -a "$(metrics_of whole | sed -n 's/"rec.hr@1": *//p' | awk '{ print ($1 < 3.1 / 7) }')" = 1

wrong "a K above the beams" 64 'rec.*top_k.*from 1 to rec.num_beams = 14' ./dtrain "$tmp/tiny.ini" run.output_dir= rec.top_k=15
# A node may have an old copy of a file: ranks that start in two folders find two.
mkdir -p "$tmp/here" "$tmp/there"
cp "$tmp/items.txt" "$tmp/items.npy" "$tmp/here" && cp "$tmp/items.npy" "$tmp/there" && head -13 "$tmp/items.txt" >"$tmp/there/items.txt"
sed "s|tests/data|$PWD/tests/data|" "$tmp/tiny.ini" >"$tmp/apart.ini"
differ() { # WHAT FILE COMMAND...
    ends "$1: two copies that differ are refused" 65 run 0 $MPIRUN -np 1 -wdir "$tmp/here" "${@:3}" : -np 1 -wdir "$tmp/there" "${@:3}"
    expect_text "and named" "$2: the file on host .* differs from rank 0.s"
}
differ "an evaluation" items.txt "$PWD/dtrain" "$tmp/apart.ini" run.output_dir="$tmp/failed" rec.catalogue=items.txt
differ "dtrain-generate" items.txt "$PWD/dtrain-generate" "$PWD/tests/data/dpo/start" --tokenizer bytes --prompt u --catalogue items.txt
run 0 ./dtrain-convert --to hf --tokenizer bytes tests/data/dpo/start "$tmp/small"
head -1 "$tmp/items.txt" >"$tmp/there/items.txt" # with fewer level tokens
differ "new tokens" items.txt "$PWD/dtrain-convert" --add-tokens items.txt "$tmp/small" "$tmp/larger"
head -c 4680 "$tmp/items.npy" | sed 's/(114, 5)/(113, 5)/' >"$tmp/there/items.npy"
differ "embeddings, by their shape" items.npy "$PWD/dtrain-sid" --embeddings items.npy --method kmeans --codes 4 -o "$tmp/sids"
cp "$tmp/items.txt" "$tmp/items.npy" "$tmp/there" && printf x | dd of="$tmp/there/items.npy" bs=1 seek=4660 conv=notrunc status=none
differ "embeddings of rewards" items.npy "$PWD/dtrain" "$tmp/apart.ini" run.output_dir="$tmp/failed" "${rl_args[@]}" batch.micro_batch_size=7 rec.catalogue=items.txt rec.item_embeddings=items.npy
wrong "grpo with a catalogue that cannot be read: of that alone" 65 "none.txt: cannot be opened" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/none" "${rl_args[@]}" batch.micro_batch_size=7 rec.catalogue="$tmp/none.txt"
printf '<a>\tT\t1\nb\tT\t2\n' >"$tmp/broken.txt"
wrong "a broken line" 65 'broken.txt:2: expected a semantic ID' ./dtrain "$tmp/tiny.ini" run.output_dir= rec.catalogue="$tmp/broken.txt"
wrong "prompts without targets" 64 'expected prompts with answers' ./dtrain "$tmp/tiny.ini" run.output_dir= data.validation="$tmp/bare.h5"
wrong "no tokenizer" 64 'identifying items needs a tokenizer' ./dtrain "$tmp/tiny.ini" run.output_dir= model.tokenizer=
run 0 ./dtrain --plan --ranks 2 "$tmp/tiny.ini" model.tokenizer= run.task=grpo data.train="$tmp/train.h5" data.validation= grpo.max_completion_length=64
expect_text "a plan needs none, nor room for more than items have" 'of at most 8 new tokens, for at most [0-9]+ prompts of 17;'
run 0 ./dtrain --plan --ranks 2 "$tmp/tiny.ini" model.tokenizer="$tmp/silent/other.json"
expect_text "a plan tells of a tokenizer of another model" "items.txt:[0-9]+: the SID .* of item [0-9]+ has token [0-9]+, but the model's vocabulary has 258 tokens"
fails_alone 1 recommend.look 2 train 2 failed
expect "no predictions are written" test -z "$(ls "$tmp/failed" | grep predictions)"
mkdir -p "$tmp/occupied/predictions.json"
wrong "a folder in their place" 74 'predictions.json: expected a regular file or no file, found a directory' ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/occupied"

# ---- the example ------------------------------------------------------------------------------------------------------------------------------
[ -z "${DTRAIN_DEVICE:-}" ] || { e2e_done; exit; } # long, and the same programs on any device
run 0 env RUNS="$tmp/toy" ITEMS=144 USERS=600 EPOCHS=2 STEPS=4 \
    SETTINGS="run.threads=1 model.hidden_size=64 model.intermediate_size=128 model.num_attention_heads=2 model.num_key_value_heads=1" tools/recommend.sh
expect_exit "a shop from texts to recommendations" 0
cat >"$tmp/measured.py" <<'PY'
import csv, math, sys
from collections import Counter, defaultdict
data = sys.argv[1] + "/toy/recommend-data/"
sids = list(dict.fromkeys(x.split("\t")[0] for x in open(data + "shop.txt")))
train, test = ([(eval(r["history_item_sid"])[-1], r["item_sid"]) for r in csv.DictReader(open(data + "shop.%s.csv" % part))] for part in ("train", "test"))
seen, behind = Counter(s for _, s in train), Counter(train)
ranks = defaultdict(list)
for last, target in test:
    ranks["popular"].append(sorted(sids, key=lambda s: -seen[s]).index(target))
    ranks["next"].append(sorted(sids, key=lambda s: (-behind[last, s], -seen[s])).index(target))
told = {(f[0], int(f[1])): (float(f[2]), float(f[3])) for f in (x.split("\t") for x in open(data + "measured.txt"))}
def close(found, want): # six digits are reported
    assert all(abs(a - b) <= 1e-5 * b for a, b in zip(found, want)), (found, want)
for k in (1, 3, 10, 20):
    gain = [1 / math.log2(r + 2) if r < k else 0 for r in range(len(sids))]
    close(told["random", k], (k / len(sids), sum(gain) / len(sids)))
    for what, r in ranks.items():
        close(told[what, k], (sum(x < k for x in r) / len(r), sum(gain[x] for x in r) / len(r)))
assert len(test) == 600 and len(sids) > 130, (len(test), len(sids))
for model in ("sft", "rl"): # it found 0.52 and 0.54; by popularity 0.10
    assert told[model, 10][0] > 2 * told["popular", 10][0] > 2 * told["random", 10][0] and told[model, 10][1] > 2 * told["popular", 10][1], told
PY
expect "its models find far more than popularity does, whose numbers are right" python3 "$tmp/measured.py" "$tmp"
if command -v gnuplot >/dev/null; then expect "and it draws a picture" grep -q '</svg>' "$tmp/toy/recommend-data/recommend.svg"; else skip "and it draws a picture" "gnuplot is not installed"; fi
e2e_done

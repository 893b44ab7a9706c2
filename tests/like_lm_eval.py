"""like_lm_eval.py - compares an evaluation of dtrain with that of lm-evaluation-harness (make_eval_fixtures.py).

    python3 tests/like_lm_eval.py SETTING DIR [TOLERANCE]    prints each difference, for the benchmarks of DIR/eval
    python3 tests/like_lm_eval.py SETTING                    prints the keys of the setting
"""
import json
import os
import sys

setting = json.load(open("tests/data/eval/lm_eval.json"))[sys.argv[1]]
if len(sys.argv) == 2:
    print(setting["keys"])
    sys.exit()
folder, tolerance = sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 1e-4
with open(folder + "/metrics.jsonl") as f:
    mine = json.loads(f.readlines()[-1])
for name, theirs in setting["benchmarks"].items():
    if not os.path.exists(f"{folder}/eval/{name}.jsonl"):
        continue
    with open(f"{folder}/eval/{name}.jsonl") as f:
        found = [q for line in f for q in json.loads(line)["requests"]]
    for i, (q, text) in enumerate(zip(found, theirs.get("texts", []))):
        if q["text"] != text.replace("\0", "\ufffd"):
            print(f"{name}: text {i}: {q['text']!r}, expected {text!r}")
    if "texts" in theirs:
        found = []
    if len(found) != len(theirs["requests"]):
        print(f"{name}: {len(found)} requests, expected {len(theirs['requests'])}")
    for i, (q, (context, rest, logp, greedy)) in enumerate(zip(found, theirs["requests"])):
        if q["context_ids"] != context or q["continuation_ids"] != rest:
            print(f"{name}: request {i}: other tokens")
        elif q["greedy"] != greedy or abs(q["logp"] - logp) > tolerance * max(1, abs(logp) / 100):
            print(f"{name}: request {i}: {q['logp']} {q['greedy']}, expected {logp} {greedy}")
    for metric, value in theirs["metrics"].items():
        x = mine.get(f"eval/{name}/{metric}")
        if x is None or abs(x - value) > tolerance * max(1, abs(value)):
            print(f"{name}: {metric} {x}, expected {value}")

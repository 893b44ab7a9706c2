#!/bin/bash
# e2e_wandb.sh - a run exported as an offline run of Weights & Biases. PYTHON: a Python with the package wandb; without it the conversion is
# skipped.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then skip "conversion for wandb" "no $python"; exit 0; fi
ends_saying "a directory without metrics is refused" 65 "error: $tmp/nowhere/metrics.jsonl: cannot read" run 0 "$python" tools/wandb_offline.py "$tmp/nowhere"
mkdir "$tmp/bad" && printf '{"step": 1}\n{"stop": 2}\n' >"$tmp/bad/metrics.jsonl"
prints "a line that is no record is named" 'bad/metrics.jsonl:2: expected a JSON object with "step"' run 0 "$python" tools/wandb_offline.py "$tmp/bad"
ends "an unknown option" 64 run 0 "$python" tools/wandb_offline.py --frobnicate
if ! "$python" -c 'import wandb' 2>/dev/null; then
    printf '{"step": 1}\n' >"$tmp/bad/metrics.jsonl"
    prints "a missing package is named" 'the package wandb is not installed: pip install wandb' run 0 "$python" tools/wandb_offline.py "$tmp/bad"
    skip "conversion for wandb" "$python has no package wandb"
    e2e_done
    exit
fi

make_data || { not_ok "data of the test" "dtrain-data failed"; exit 1; }
train 0 run data.validation="$tmp/valid.h5" data.validation_steps=3
echo '{"step": 7, "lo' >>"$tmp/run/metrics.jsonl" # a torn line is left out
sed -i '$ s/\n$//' "$tmp/run/metrics.jsonl" && truncate -s -1 "$tmp/run/metrics.jsonl"
ends "a run is converted" 0 run 0 env WANDB_MODE=offline "$python" tools/wandb_offline.py "$tmp/run" --project tries
expect_text "the next command is said" "^  wandb sync $tmp/run/wandb/offline-run-"
"$python" tests/read_wandb.py "$tmp"/run/wandb/offline-run-*/*.wandb >"$tmp/read.json" 2>"$out"
holds() { "$python" -c "import json, sys; w = json.load(open('$tmp/read.json')); jsonl = [json.loads(l) for l in open('$tmp/run/metrics.jsonl').read().split('\n')[:-1]]
h = w['history']; sys.exit(not ($1))"; }
expect "the run has its name and project" holds "w['run']['name'] == 'run' and w['run']['project'] == 'tries'"
expect "the history has every step once" holds "[r['_step'] for r in h] == [1, 2, 3, 4, 5, 6]"
expect "losses match metrics.jsonl" holds "[r['train/loss'] for r in h] == [r['loss'] for r in jsonl if 'loss' in r]"
expect "validation losses match at their steps" holds "[(r['_step'], r['validation/loss']) for r in h if 'validation/loss' in r] == [(r['step'], r['validation_loss']) for r in jsonl if 'validation_loss' in r]"
expect "the configuration has its types" holds "w['config']['run.max_steps'] == 6 and w['config']['optimizer.lr'] == 0.01 and w['config']['data.shuffle'] is True and w['config']['model.model_type'] == 'llama'"
expect "the summary has the last values" holds "w['summary']['train/loss'] == [r['loss'] for r in jsonl if 'loss' in r][-1] and 'validation/loss' in w['summary']"
expect "the run is a finished one" holds "w.get('exit', 1) == 0"
first=$("$python" -c "import json; print(json.load(open('$tmp/read.json'))['run']['id'])")
run 0 "$python" tools/wandb_offline.py "$tmp/run"
expect "converted again it keeps its id" test "$(ls -d "$tmp"/run/wandb/offline-run-*-"$first" | wc -l)" -ge 1 -a "$(ls -d "$tmp"/run/wandb/offline-run-* | sed 's/.*-//' | sort -u | wc -l)" = 1
e2e_done

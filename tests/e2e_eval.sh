#!/bin/bash
# e2e_eval.sh - evaluations on benchmarks: against lm-evaluation-harness, on several ranks, during training, with the best checkpoint; errors.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
all=hellaswag,arc:arc_easy,mmlu:mmlu_anatomy,piqa,winogrande,ceval:ceval_law,wikitext,lambada,boolq,openbookqa,sciq,truthfulqa,gsm8k,math:math_algebra
evaluate() { # NP DIR ARGS...
    local np=$1 dir=$tmp/$2
    shift 2
    rm -rf "$dir"
    run "$np" ./dtrain input/eval.ini run.threads=1 model.path=tests/data/eval/model data.validation= eval.data_path=tests/data/eval/files \
        eval.tasks=$all eval.log_samples=true eval.bootstrap_iters=2000 run.output_dir="$dir" "$@"
}
like_lm_eval() { # NAME SETTING DIR N: benchmarks
    is "$1" "$(ls "$tmp/$3/eval" | wc -l; python3 tests/like_lm_eval.py "$2" "$tmp/$3" 2>&1 | head -5)" "${4:-14}"
}
same_results() { is "$1" "$(cat "$tmp/$3"/eval/*.jsonl | cksum)" "$(cat "$tmp/$2"/eval/*.jsonl | cksum)"; }

for setting in own two; do
    # shellcheck disable=SC2046
    ends "lm-evaluation-harness, setting $setting" 0 evaluate 1 $setting $(python3 tests/like_lm_eval.py $setting)
    like_lm_eval "tokens, log-probabilities and metrics are equal ($setting)" $setting $setting
done
expect_text "a table shows the results" "^arc_easy +2 +8 +acc_norm +[0-9.]+ +[0-9.]+"
expect "memory as planned" as_planned
keys=$(python3 tests/like_lm_eval.py own)
for layout in "2 zero.stage=0" "3 zero.stage=3" "2 zero.stage=3 eval.batch_size=3" "2 mesh.tp=2" "2 mesh.cp=2 eval.tasks=${all%,gsm8k*}"; do
    # shellcheck disable=SC2086
    set -- $layout
    np=$1
    shift
    # shellcheck disable=SC2086
    ends "on $np ranks, $*" 0 evaluate "$np" l $keys "$@"
    like_lm_eval "the same results on $np ranks, $*" own l "$(ls "$tmp/l/eval" | wc -l)"
    [ "$*" != zero.stage=3 ] || same_results "bit for bit" own l
done

# ---- during training: which colour belongs to which name
mkdir "$tmp/likes"
awk 'BEGIN { split("anna boris clara denis erika fritz greta hanno", n, " "); split("red blue green white", c, " ");
     for (i = 1; i <= 8; i++) for (k = 0; k < 8; k++) print n[i] " likes " c[(i * 3) % 4 + 1] "." > "'"$tmp/likes/text"'";
     for (i = 1; i <= 8; i++) printf "{\"name\": \"%s\", \"answer\": %d}\n", n[i], (i * 3) % 4 > "'"$tmp/likes/test.jsonl"'" }'
cat >"$tmp/likes/likes.ini" <<'INI'
[likes]
output_type = multiple_choice
files = test.jsonl
doc_to_text = {{name}} likes
doc_to_choice = ["red", "blue", "green", "white"]
doc_to_target = answer
metrics = acc, acc_norm, hits@1, mrr, ndcg@3

[says_which_colour_belongs_to_the_name_of_a_person]
output_type = generate_until
files = test.jsonl
doc_to_text = {{name}} likes
doc_to_target = {{ [' red', ' blue', ' green', ' white'][answer] }}
until = ["."]
max_gen_toks = 12
temperature = 1
repeats = 4
metrics = exact_match, pass@2
INI
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
./dtrain-data --documents lines -o "$tmp/likes/train.h5" "$tmp/likes/text" >/dev/null 2>&1
keys=(data.train="$tmp/likes/train.h5" eval.tasks="$tmp/likes/likes.ini" eval.steps=25 model.tokenizer=bytes run.max_steps=150 data.packing=bfd optimizer.lr=5e-3)
learn() { train "$1" "$2" "${keys[@]}" "${@:3}"; }
ends "a model learns a benchmark" 0 learn 2 b checkpoint.load_best_model_at_end=true checkpoint.metric_for_best_model=likes/acc \
    checkpoint.save_steps=50 checkpoint.save_total_limit=1
accuracy=$(number b eval/likes/acc | grep -v null)
is "an evaluation every 25 steps" "$(echo "$accuracy" | wc -l)" 6
expect "the accuracy rises" awk -v a="$(echo "$accuracy" | head -1)" -v b="$(echo "$accuracy" | tail -1)" 'BEGIN { exit !(a < 0.7 && b == 1) }'
best=$(echo "$accuracy" | awk '$1 > m { m = $1; at = NR * 25 } END { print at }')
is "hits@1 is the accuracy" "$(number b eval/likes/hits@1 | grep -v null)" "$accuracy"
expect "the right choice comes first" test "$(number b eval/likes/mrr | tail -1) $(number b eval/likes/ndcg@3 | tail -1)" = "1 1"
is "the best checkpoint follows it" "$(cat "$tmp/b/checkpoints/best")" "$(printf 'step-%08d.h5' "$best")"
expect "sampled texts become right" above b eval/says_which_colour_belongs_to_the_name_of_a_person/pass@2 0.9
expect_text "the table at the end" "^likes +0 +8 +acc +1.0000 +0.0000"
DTRAIN_FAULT=step.begin:0:31:stop start 2 c "${keys[@]}" zero.stage=3
stop_at c 1 USR1
ends "stopped" 75 finish c
ends "and resumed on 3 ranks" 0 learn 3 c
is "has the same number of evaluations" "$(number c eval/likes/acc | grep -vc null)" 6
fails_alone 1 eval.finish 1 learn 2 d

# ---- the judge: rates and means of the scores that dtrain-generate gives
cp -r tests/data/rm/qwen2 "$tmp/judge" && cp tests/data/rm/letters/tokenizer.json "$tmp/judge/"
cat >"$tmp/likes/judge.ini" <<'INI'
[judged]
output_type = generate_until
files = test.jsonl
doc_to_text = ['{{name}}']
doc_to_target = {{ [' red', ' blue', ' green', ' white'][answer] }}
max_gen_toks = 8
temperature = 1
repeats = 3
metrics = safety_rate, win_rate, judge_score
INI
judge() { run "$1" ./dtrain input/eval.ini run.threads=1 model.path=tests/data/eval/model data.validation= eval.tasks="$tmp/likes/judge.ini" \
    eval.judge_path="$tmp/judge" eval.log_samples=true run.output_dir="$tmp/$2" "${@:3}"; }
ends "a judge scores generated answers" 0 judge 1 j
expect "memory as planned" as_planned
ends "on 3 ranks, where it is divided" 0 judge 3 k zero.stage=3
same_results "the same scores" j k
python3 - "$tmp" >"$tmp/found" <<'PY'
import json, sys
tmp = sys.argv[1]
docs = [json.loads(line)["name"] for line in open(tmp + "/likes/test.jsonl")]
lines = [json.loads(line) for line in open(tmp + "/j/eval/judged.jsonl")]
scores = [q["judge"] for line in lines for q in line["requests"]]
with open(tmp + "/answers.jsonl", "w") as f:
    for line in lines:
        for q in line["requests"]:
            f.write(json.dumps({"prompt": "['" + docs[line["doc"]] + "']", "answer": q["text"]}) + "\n")
print(" ".join("%.6f" % x for x in (sum(a > 0 for a, b in scores) / len(scores), sum((a > b) + (a == b) / 2 for a, b in scores) / len(scores),
                                    sum(a for a, b in scores) / len(scores))))
PY
values() { for m in safety_rate win_rate judge_score; do printf '%.6f ' "$(number j eval/judged/$m)"; done; }
is "the rates are those of the scores" "$(values)" "$(cat "$tmp/found") "
run 1 ./dtrain-generate --score "$tmp/judge" --answers "$tmp/answers.jsonl"
near "the scores are those of dtrain-generate" "$(number j eval/judged/safety_rate | awk '{ print 100 * $1 }')" "$(sed -n 's/.*; \([0-9.]*\) % above 0/\1/p' "$out")" 0.01

# ---- errors
refused() { # NAME CODE REGEX LINES... of a description, then -- settings
    local name=$1 code=$2 text=$3
    shift 3
    printf '[b]\n' >"$tmp/likes/e.ini"
    while [ $# -gt 0 ] && [ "$1" != -- ]; do printf '%s\n' "$1" >>"$tmp/likes/e.ini"; shift; done
    wrong "$name" "$code" "$text" ./dtrain input/eval.ini model.path=tests/data/eval/model data.validation= eval.tasks="$tmp/likes/e.ini" "${@:2}"
}
mc='output_type = multiple_choice' ok='files = test.jsonl' ask='doc_to_text = {{name}} likes' pick='doc_to_choice = ["red", "blue", "green", "white"]' answer='doc_to_target = answer'
refused "no output_type" 64 "e.ini:2: \[b\] output_type: expected multiple_choice, .*found ''" "$ok"
refused "an unknown key" 64 "e.ini:3: \[b\] colour: unknown key; expected one of" "$mc" "colour = red"
refused "no file" 65 "e.ini:3: \[b\] files: .*none.jsonl" "$mc" "files = none.jsonl" "$ask" "$pick" "$answer"
refused "a missing field" 65 "e.ini:4: \[b\] doc_to_text: line 1: age is undefined.*test.jsonl:1" "$mc" "$ok" "doc_to_text = {{age}}" "$pick" "$answer"
refused "a template with a mistake" 65 "e.ini:4: \[b\] doc_to_text: line 1: " "$mc" "$ok" "doc_to_text = {{name" "$pick" "$answer"
refused "an index out of range" 65 "e.ini:5: \[b\] doc_to_target: expected the index of a choice from 0 to 1.*test.jsonl:1" "$mc" "$ok" "$ask" "doc_to_target = answer" 'doc_to_choice = ["red", "blue"]'
refused "another number of choices" 65 "e.ini:6: \[b\] doc_to_choice: expected n_choices = 3 choices, found 4" "$mc" "$ok" "$ask" "$answer" "$pick" "n_choices = 3"
refused "an empty document" 65 "e.ini:4: \[b\] doc_to_target: expected a text, found an empty one.*test.jsonl:1" "output_type = loglikelihood_rolling" "$ok" "doc_to_target = {{''}}{#-#}"
refused "an unknown metric" 64 "e.ini:6: \[b\] metrics: expected metrics among acc, .*found 'f2'" "$mc" "$ok" "$ask" "$pick" "metrics = f2" "$answer"
refused "a metric twice" 64 "e.ini:6: \[b\] metrics: expected different metrics and filters, found eval/b/acc twice" "$mc" "$ok" "$ask" "$pick" "metrics = acc, acc" "$answer"
refused "a name with a slash" 64 "e.ini:3: \[a/b\]: expected a name without /" "[a/b]" "$mc"
refused "an unknown process" 64 "e.ini:4: \[b\] process_docs: expected '' or 'math', found 'maths'" "$mc" "$ok" "process_docs = maths" "$ask" "$pick" "$answer"
refused "no examples" 64 "e.ini:2: \[b\] fewshot_files: expected the files of the examples" "$mc" "$ok" "$ask" "$pick" "num_fewshot = 2" "$answer"
refused "generation with divided tokens" 64 "mesh.cp: expected 1, found 2: the benchmark b generates texts" "output_type = generate_until" "$ok" "$ask" "$answer" -- mesh.cp=2
refused "a text of all positions" 64 "e.ini:6: \[b\] max_gen_toks: expected less than eval.max_length = 256, found 256" "output_type = generate_until" "$ok" "$ask" "$answer" "max_gen_toks = 256"
refused "an invalid expression" 65 "e.ini:6: \[b\] filter: .*is not a valid regular expression" "output_type = generate_until" "$ok" "$ask" "$answer" 'filter = [{"name": "a", "regex_pattern": "("}]'
refused "no judge" 64 "\[eval\] judge_path \(default\): expected a reward or safety model" "output_type = generate_until" "$ok" "$ask" "$answer" "metrics = win_rate" "max_gen_toks = 8"
refused "a judge with another vocabulary" 64 "eval.judge_path: the tokenizer has 400 tokens, but the judge only 30" "output_type = generate_until" "$ok" "$ask" "$answer" "metrics = win_rate" "max_gen_toks = 8" -- eval.judge_path=tests/data/rm/qwen2
refused "a model with a scalar head" 64 "eval.tasks: benchmarks score texts" "$mc" "$ok" "$ask" "$pick" "$answer" -- run.task=rm run.output_dir="$tmp/e" data.train=tests/data/rm/pairs.h5
e2e_done

#!/bin/bash
# e2e_rewards.sh - reward functions: the examples; the rewards of each kind of function for given completions in a GRPO run, on any ranks
# and stages; failing programs; files that cannot be opened.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"

# ---- the examples
sample() { printf '{"prompt":"%s","completion":"%s","prompt_ids":[1,2],"completion_ids":[3],"answer":"%s"}\n' "$1" "$2" "${3:-}"; }
if command -v python3 >/dev/null; then
    is "reward_sum.py" "$({
        sample '12 + 30 =' ' 42'
        sample '12 + 30 =' ' it is -1'
        sample '12 + 30 =' ' no'
        sample 'who?' ' 42'
    } | tools/reward_sum.py | tr '\n' ' ')" "1 0.2 0 null "
    # that of docs/rewards.md; answers of records are texts or numbers
    sed -n '/^```python/,/^```/{/^```/!p}' docs/rewards.md >"$tmp/documented.py"
    is "the example of docs/rewards.md" "$({
        sample '12 + 30 =' ' 42' 42
        sample '12 + 30 =' ' 43' 42
        sample '12 + 30 =' ' 42' 42 | sed 's/"answer":"42"/"answer":42/'
    } | python3 "$tmp/documented.py" | tr '\n' ' ')" "1 0 1 "
else skip "programs in Python" "no python3"; fi
is "reward_brief.sh" "$({
    sample 'a long question' '12345678'
    sample 'a long question' '123456789'
    sample 'q' ''
} | tools/reward_brief.sh 8 | tr '\n' ' ')" "1 0 1 "

# ---- functions of all kinds -------------------------------------------------------------------------------------------------------------------
# Three prompts with four completions each, as text and as bytes; "$" marks the end of text.
cat >"$tmp/completions" <<'TEXT'
12+30=|42$|#### 42$|no$|42 of course$
say it:|please$|PLEASE do$|it$|cut he
1+1=|2$|<answer> 2.0 </answer>$|3$|$
TEXT
awk -F'|' -v d="$tmp" '
    BEGIN { for (i = 1; i < 256; i++) code[sprintf("%c", i)] = i; code["$"] = 256; split("42 0 2", answer, " ") }
    function ids(text, i, list) { list = ""; for (i = 1; i <= length(text); i++) list = list (i > 1 ? ", " : "") code[substr(text, i, 1)]; return "[" list "]" }
    { line = ""
      for (k = 2; k <= 5; k++) {
          line = line (k > 2 ? ", " : "") ids($k); text = $k; ends = sub(/\$$/, "", text); n = length($k)
          printf "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", $1, text >(d "/texts.jsonl")
          # accuracy, length:4, keywords:please|it, reward_brief.sh 3
          a = $1 ~ /say/ ? "null" : text == answer[NR] || text == "#### 42" || text ~ /2\.0/ ? 1 : 0
          l = n < 4 ? n / 4 : n > 8 ? 0 : 2 - n / 4; w = (tolower(text) ~ /please/) / 2 + (tolower(text) ~ /it/) / 2
          print a, l, w, length(text) <= 3 >(d "/expected") }
      printf "{\"prompt_ids\": %s, \"completion_ids\": [%s]%s}\n", ids($1), line, $1 ~ /say/ ? "" : ", \"record\": {\"answer\": " answer[NR] "}" >(d "/given.jsonl") }' "$tmp/completions"

make_data
train 1 base run.max_steps=1 checkpoint.export=hf
printf '{"prompt": "a", "chosen": "%s", "rejected": "%s"}\n' yes no nice nasty >"$tmp/pairs.jsonl"
judge() { # NAME TOKENIZER VOCAB_SIZE: a reward model of random weights, a step away from them
    local name=$1 tokenizer=$2
    ./dtrain-data -q --force --tokenizer "$tokenizer" --documents lines -o "$tmp/$name.h5" "$tmp/text.txt" >"$tmp/.data" 2>&1 || cat "$tmp/.data"
    ./dtrain-data -q --force --tokenizer "$tokenizer" --kind preference -o "$tmp/$name-pairs.h5" "$tmp/pairs.jsonl" >"$tmp/.data" 2>&1 || cat "$tmp/.data"
    train 1 "$name-base" run.max_steps=1 model.tokenizer="$tokenizer" checkpoint.export=hf data.train="$tmp/$name.h5" model.vocab_size="$3" batch.train_batch_size=2
    train 1 "$name" run.task=rm run.max_steps=2 model.tokenizer="$tokenizer" checkpoint.export=hf data.train="$tmp/$name-pairs.h5" model.path="$tmp/$name-base/hf" batch.train_batch_size=2
    [ "$code" = 0 ] || not_ok "a reward model" "exit code $code"
}
judge same bytes 257
judge other tests/data/tokenizer/smollm 703

grpo() { # NP DIR FUNCTIONS ARGS...
    local np=$1 dir=$2 functions=$3
    shift 3
    run "$np" ./dtrain "$tmp/tiny.ini" run.task=grpo run.output_dir="$tmp/$dir" run.max_steps=1 model.path="$tmp/base/hf" data.train= grpo.rollouts="$tmp/given.jsonl" \
        grpo.reward_funcs="$functions" grpo.num_generations=4 grpo.max_completion_length=24 batch.train_batch_size=12 log.rollouts=true "$@"
}
rewards() { grep -o '"rewards": \[\[.*\]\], ' "$tmp/$1/rollouts.jsonl" | sed 's/"rewards": \[\[//; s/\]\], "advantages.*//; s/\]\], $//; s/\], \[/\n/g' | tr -d ','; }
all="accuracy, length:4, keywords:please|it, command:tools/reward_brief.sh 3, model:$tmp/same/hf, model:$tmp/other/hf"
ends "functions of all kinds" 0 grpo 1 one "$all"
expect "planned is allocated" as_planned
expect "a run calls an exported model" grep -q '"grpo/rewards/same/mean".*"grpo/rewards/other/mean"' "$tmp/one/metrics.jsonl"
expect "built-in functions and a program say what a plain script says" cmp "$tmp/expected" <(rewards one | cut -d' ' -f1-4)
column=5
for name in same other; do
    run 0 ./dtrain-generate --score "$tmp/$name/hf" --answers "$tmp/texts.jsonl" --jsonl -o "$tmp/$name.judged" --force
    # fp32 roundings of other batches: 1e-5 of scores of about 1. The eighth completion was truncated: it lacks the end of text, which --answers adds.
    sed 's/.*"reward":\([-0-9.e+]*\).*/\1/' "$tmp/$name.judged" | paste -d' ' - <(rewards one | cut -d' ' -f$column) >"$tmp/both"
    expect "a reward model ($name tokenizer) says what dtrain-generate --score says" awk '
        NR != 8 { d = $1 - $2; if ((d < 0 ? -d : d) > 1e-5) { print; bad = 1 } } END { exit bad || NR != 12 }' "$tmp/both"
    expect "completions have different rewards ($name)" test "$(rewards one | cut -d' ' -f$column | sort -u | wc -l)" -gt 6
    column=$((column + 1))
done
# The second prompt's completions are not judged by accuracy, so the first prompt's come in their place: models see these alone.
grpo 2 dynamic "accuracy, model:$tmp/same/hf, model:$tmp/other/hf" grpo.reward_weights=1,0,0 grpo.dynamic_sampling=true
paste -d' ' <(rewards one | awk 'NR <= 4 || NR > 8 { print } NR <= 4 { again[NR] = $0 } END { for (i = 1; i <= 4; i++) print again[i] }' | cut -d' ' -f5,6) <(rewards dynamic | cut -d' ' -f2,3) >"$tmp/both"
expect "of completions that are added models see these alone, and say the same" awk 'function off(a, b) { return a > b ? a - b : b - a } off($1, $3) > 1e-5 || off($2, $4) > 1e-5 { bad = 1 } END { exit bad || NR != 12 }' "$tmp/both"
near() { paste -d' ' <(rewards one) <(rewards "$1") | awk '{ for (i = 1; i <= 6; i++) { d = $i - $(i + 6); if ((d < 0 ? -d : d) > 1e-5 || ($i == "null") != ($(i + 6) == "null")) bad = 1 } } END { exit bad || NR != 12 }'; }
for layout in "2 0 2" "3 3 1" "4 1 3"; do
    set -- $layout
    grpo "$1" "layout$1" "$all" zero.stage="$2" batch.micro_batch_size="$3"
    expect "the same on $1 ranks, stage $2, micro-batches of $3" near "layout$1"
done
grpo 1 weighted "length:4, keywords:please|it" grpo.reward_weights="2, -1"
is "metrics have a mean of each" "$(number weighted 'grpo/rewards/length/mean')" "$(awk '{ s += $2 } END { printf "%.9g", s / NR }' "$tmp/expected")"
is "the weighted sum matches" "$(number weighted grpo/reward)" "$(awk '{ s += 2 * $2 - $3 } END { printf "%.9g", s / NR }' "$tmp/expected")"
# On two ranks the second group is in two parts. A miss costs 1/log2(place + 2) of their sum.
grpo 2 rec "rec_rule, rec_rank, rec"
awk 'BEGIN { split("1 0 0 0 x x x x 1 0 0 0", hit, " "); for (i = 0; i < 4; i++) sum += log(2) / log(i + 2)
             for (i = 0; i < 12; i++) if (hit[i + 1] == "x") print "null null null"
                 else { cost = hit[i + 1] ? 0 : -log(2) / log(i % 4 + 2) / sum; print hit[i + 1], cost, hit[i + 1] + cost } }' >"$tmp/items"
expect "items are judged by their places in whole groups" sh -c 'paste -d" " "$1" "$2" | awk "{ for (i = 1; i <= 3; i++) { d = \$i - \$(i + 3);
    if (d > 1e-6 || d < -1e-6 || (\$i == \"null\") != (\$(i + 3) == \"null\")) bad = 1 } } END { exit bad || NR != 12 }"' sh "$tmp/items" <(rewards rec)
expect "nothing is said of functions that apply" sh -c '! grep -q "no function applies" "$1"' sh "$out"

# On rank 1 it takes at least as long as it sleeps: a step later by 0.3 s.
cat >"$tmp/never.sh" <<'SCRIPT'
#!/bin/sh
while read -r line; do
    n=$((n + 1))
    [ "$DTRAIN_RANK" = 0 ] || [ $n != 1 ] || sleep 0.3
    echo null
done
SCRIPT
chmod +x "$tmp/never.sh"
ends "a function that never applies" 0 grpo 2 never "command:$tmp/never.sh" run.max_steps=2 log.report_to="stdout, jsonl"
expect_text "a function that never applies causes a warning" '\[grpo\] reward_funcs: no function applies to any of the 12 completions of a rollout'
expect "the warning appears once" test "$(grep -c 'no function applies' "$out")" = 1
expect_text "a completion is shown without a reward" 'a completion of [0-9]+ tokens(, cut)?, never.sh -: '
expect_text "a step without rewards is logged" 'step 2/2 .* loss [-0-9.]+  reward -  grad '
expect "the time of functions is that of the slowest rank" awk '{ if (NR == 1 && !($1 >= 0.3) || $1 < 0) bad = 1 } END { exit bad || NR != 2 }' <(number never grpo/time/reward)

# ---- what goes wrong --------------------------------------------------------------------------------------------------------------------------
cat >"$tmp/dies.sh" <<'SCRIPT'
#!/bin/sh
read -r line
echo "the model of rank $DTRAIN_RANK is not there" >&2
[ "$DTRAIN_RANK" = 0 ] || exit 9
echo 1
cat >/dev/null
SCRIPT
chmod +x "$tmp/dies.sh"
ends "a program that dies on one rank ends the run" 65 grpo 2 dies "command:$tmp/dies.sh"
expect_text "the exit status of the program is reported" 'dies.sh: it ended with exit status 9 after 0 of [0-9]+ answers; its last lines:'
expect_text "the last lines of the program are reported" 'the model of rank 1 is not there'
expect "nothing of the programs is left" sh -c '! pgrep -f "^/bin/sh $1"' sh "$tmp/dies.sh"
for point in reward.start reward.ask task.score; do
    DTRAIN_FAULT=$point:1:1:error ends "a fault on one rank at $point ends the run" 70 grpo 2 "fault-$point" "$all" zero.stage=3
done
ends "a program without output ends the run" 65 grpo 2 stalls "command:sh -c 'cat >/dev/null'" comm.timeout=2
expect_text "the timeout is reported" 'no answer for 2 s \(comm.timeout\), after 0 of'
cp -r "$tmp/same/hf" "$tmp/nan"
width=$(grep -o '"hidden_size": [0-9]*' "$tmp/nan/config.json" | grep -o '[0-9]*')
for i in $(seq 0 $((width - 1))); do # finite, and Inf - Inf is what comes of them
    for name in model.norm.weight score.weight; do python3 tests/poison.py "$tmp/nan/model.safetensors" $name $i 3e38; done
done
ends_saying "a score that is no number ends the run" 71 'nan: the score of a text of [0-9]+ tokens is -?nan, so the model' grpo 2 nan "length:4, model:$tmp/nan"
grpo 1 bad "correct, length:0, command:no-such-program, model:$tmp/nowhere"
expect_text "all errors are reported together: a name" 'reward_funcs: expected accuracy, format, length, keywords, rec, rec_rule, rec_rank, rec_semantic, model:DIRECTORY or command:PROGRAM ARGS, found correct'
expect_text "parameters" 'length:0: expected length:TARGET or length:MIN:MAX'
expect_text "a program" 'no-such-program does not exist'
expect_text "a model" "$tmp/nowhere"
prints "a file that is not executable is reported" 'README.md does not exist, or is not executable; for a file in this folder, use ./NAME' grpo 1 bad "command:README.md"

# ---- stopped while a program works ------------------------------------------------------------------------------------------------------------
# It answers the first rollout, 12 rows on two ranks, and nothing of the second before there is a file.
cat >"$tmp/waits.sh" <<'SCRIPT'
#!/bin/sh
while read -r line; do
    n=$((n + 1))
    while [ $n -gt 6 ] && [ ! -e "$1.go" ]; do : >"$1.asked.$DTRAIN_RANK"; sleep 0.1; done
    case $line in *please*) echo 2 ;; *42*) echo 1 ;; *) echo 0 ;; esac
done
SCRIPT
chmod +x "$tmp/waits.sh"
stopped() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    set -- "$np" "$dir" run.task=grpo run.max_steps=3 run.reproducible=true model.path="$tmp/base/hf" model.tokenizer=bytes data.train= grpo.rollouts="$tmp/given.jsonl" \
        grpo.reward_funcs="command:$tmp/waits.sh $tmp/wait" grpo.num_generations=4 grpo.max_completion_length=24 batch.train_batch_size=12 "$@"
    if [ -e "$tmp/wait.go" ]; then train "$@"; else start "$@"; fi
}
stopped 2 stopped
wait_for test -e "$tmp/wait.asked.0" -a -e "$tmp/wait.asked.1"
kill -TERM $(ranks_of stopped)
ends "a signal stops a run during a reward program" 75 finish stopped
expect "the reward program ends with the run" sh -c '! pgrep -f "^/bin/sh $1"' sh "$tmp/waits.sh"
touch "$tmp/wait.go"
ends "a run stopped during a reward program resumes" 0 stopped 2 stopped checkpoint.resume=auto
stopped 2 whole
expect "a resumed run has the bits of an undisturbed one" same_model "$(newest whole)" "$(newest stopped)"

# ---- the toys ---------------------------------------------------------------------------------------------------------------------------------
[ -z "${DTRAIN_DEVICE:-}" ] || { e2e_done; exit; } # long, and the same programs on any device
toy() { run 0 env RUNS="$tmp/toy" LARGEST=3 SETTINGS="$2 run.threads=1" tools/"$1".sh; }
drawn() { if command -v gnuplot >/dev/null; then expect "$1" test -s "$tmp/toy/$2/loss.png"; else skip "$1" "gnuplot is not installed"; fi; }
# 16 sums, a sixth of the completions. The model begins with the share of right guesses, and where it is in the end depends on the seed: seeds 7, 8 and 42
# gave 0.91, 0.79 and 0.96 after 0.43, 0.30 and 0.39 (e2e_grpo.sh trains one to 0.9).
ends "the toy of arithmetic" 0 toy arithmetic "run.max_steps=100 batch.train_batch_size=128 optimizer.lr=1e-3"
expect_text "counts right sums before and after" 'arithmetic-base: +[0-9]+ of 16 sums are right'
expect "and learns to add" awk '/^mean reward of the first 10/ { sub(/,/, "", $8); n++; bad = !($8 < 0.6 && $13 > 0.7) } /^arithmetic: / { n++; few = $2 < 12 } END { exit bad || few || n != 2 }' "$out"
drawn "it draws the reward" arithmetic
ends_saying "the toy of alignment" 0 'dpo: mean reward .* of 64 answers start with please' toy align run.max_steps=4
drawn "it draws its curves" align-ppo
e2e_done

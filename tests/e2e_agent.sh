#!/bin/bash
# e2e_agent.sh - completions of several turns with an environment. Given turns, steps match TRL's GRPOTrainer with an environment_factory. Generated ones
# are bit-identical on any ranks and stages, after a resume and when they are replayed, whether their sequences keep their slots or not. Also: every way in
# which a program can fail; a failing rank.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/grpo/agent
command -v python3 >/dev/null || { skip "environments" "no python3"; e2e_done; exit; }
cp -r tests/data/dpo/start "$tmp/start"
sed -i 's/"max_position_embeddings": 64/"max_position_embeddings": 256/' "$tmp/start/config.json"
make_task grpo model.path="$tmp/start" data.seq_len=160 batch.train_batch_size=8 grpo.num_generations=4 grpo.max_completion_length=120

# Of the reward of the environment there is one function in the file.
given() { # NP DIR RUN ARGS...: the fixture's run of this number
    local np=$1 dir=$2 start file keys
    IFS=$'\t' read -r name start file keys < <(trl_runs grpo/agent | sed -n "$3p")
    shift 3
    rm -rf "${tmp:?}/$dir"
    train "$np" "$dir" run.max_steps=10 grpo.rollouts="$fixture/$file.jsonl" data.shuffle=false batch.micro_batch_size=8 checkpoint.export=hf \
        checkpoint.export_dtype=fp32 $keys "$@"
}
n=$(trl_runs grpo/agent | wc -l)
for run in $(seq "$n"); do
    every 3 "$run" || continue
    given 1 trl "$run"
    expect "$name: TRL's numbers" like_trl trl grpo/agent "$name"
    expect "$name: to 1e-6 in the first step" python3 - "$tmp/trl/metrics.jsonl" "$fixture/trl.json" "$name" <<'PY'
import json, sys
run = next(r for r in json.load(open(sys.argv[2])) if r["name"] == sys.argv[3])
ours = json.loads(open(sys.argv[1]).readline())
for key, want in zip(run["metrics"], run["steps"][0]):
    x = ours.get(key, ours.get("grpo/" + key))
    assert want is None or abs(x - want) <= 1e-6 * max(1, abs(want)), (key, x, want)
PY
done
for layout in "2 3 2 2" "4 2 1 5" "2 1 4 4"; do
    read -r np stage micro run <<<"$layout"
    given "$np" layout "$run" zero.stage="$stage" batch.micro_batch_size="$micro"
    expect "$name on $np ranks at stage $stage: TRL's numbers" like_trl layout grpo/agent "$name"
done
expect "turns of a file are counted" above layout grpo/environment/turns 1
sed 's/"tool_mask": \[\[1, /"tool_mask": [[/' "$fixture/rollouts.jsonl" >"$tmp/short.jsonl"
ends_saying "a mask of another length" 65 'short.jsonl:1: tool_mask\[0\]: expected [0-9]+ numbers, 1 for a token of the model' given 1 refused 1 grpo.rollouts="$tmp/short.jsonl"

sed -n '/^```python/,/^```/{/^```/!p}' docs/environments.md >"$tmp/documented.py"
asked() { echo "{\"text\": \"$1\", \"tool_calls\": [${2:-}], \"last\": false, \"answer\": 16}"; }
function='{"function": {"name": "square", "arguments": {"x": 4}}}'
is "the example of docs/environments.md" "$({
    asked 16
    asked 17
    asked "" "$function"
} | python3 "$tmp/documented.py" | tr '\n' ' ')" '{"reward": 1.0, "done": true} {"reward": 0.0, "done": true} {"observation": "16"} '
is "calculator.py" "$({
    asked 16
    asked "" '{"function": {"name": "mul", "arguments": {"a": 3, "b": 5}}}, {"function": {"name": "div", "arguments": {}}}'
} | tools/calculator.py | tr '\n' ' ')" "{\"reward\": 1.0, \"done\": true} {\"observation\": [\"15\", \"error: KeyError('div')\"], \"failures\": 1} "

# A model that calls a tool, and repeats some digit after its result.
cat >"$tmp/agent.json" <<'JSON'
{"name": "agent", "user": {"after": "\n"}, "tool": {"after": "\n"}, "assistant": {"end": "{eos}"}}
JSON
for a in 1 2 3 4 5 6 7 8 9; do
    call="{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": $a}}}]}"
    for b in 3 6 9; do
        echo "{\"messages\": [{\"role\": \"user\", \"content\": \"q$a\"}, $call, {\"role\": \"tool\", \"content\": \"$((a * b))\"}, {\"role\": \"assistant\", \"content\": \"$b\"}]}"
    done >>"$tmp/talks.jsonl"
    echo "{\"prompt\": [{\"role\": \"user\", \"content\": \"q$a\"}], \"answer\": $a}" >>"$tmp/prompts.jsonl"
done
data --kind sft --template "$tmp/agent.json" -o "$tmp/talks.h5" "$tmp/talks.jsonl"
data --kind prompts --template "$tmp/agent.json" -o "$tmp/prompts.h5" "$tmp/prompts.jsonl"
cat >"$tmp/environment.py" <<'PY'
"""f(x) is the number of the answer times x; after two results the sum of digits of the last text is the reward."""
import json, sys
for line in sys.stdin:
    t = json.loads(line)
    assert {"episode", "turn", "last", "text", "tool_calls", "unread_calls", "prompt", "completion", "answer"} <= set(t), t
    x = sum(int(c["function"]["arguments"].get("x", 0)) for c in t["tool_calls"] if str(c["function"]["arguments"].get("x", 0)).isdigit())
    reward = 0 if t["tool_calls"] else min(1, sum(map(int, filter(str.isdigit, t["text"][:1]))) / 9)
    if t["turn"] < 3 and not t["last"]:
        answer = {"observation": str(t["answer"] * x), "role": "tool" if t["tool_calls"] else "user", "failures": int(x == 0 and bool(t["tool_calls"]))}
    else:
        answer = {"reward": reward, "done": True}
    print(json.dumps(answer), flush=True)
PY
size=(model.hidden_size=48 model.intermediate_size=96 model.num_hidden_layers=2 model.num_attention_heads=4 model.num_key_value_heads=2 model.vocab_size=257
    model.max_position_embeddings=256)
train 2 base run.task=sft model.path= model.model_type=llama "${size[@]}" data.train="$tmp/talks.h5" run.max_steps=150 batch.train_batch_size=16 \
    batch.micro_batch_size=8 optimizer.lr=5e-3 checkpoint.export=hf checkpoint.export_dtype=fp32
all=(model.path="$tmp/base/hf" data.train="$tmp/prompts.h5" "grpo.environment=command:python3 $tmp/environment.py" run.max_steps=4 run.reproducible=true
    batch.train_batch_size=24 batch.micro_batch_size=2 grpo.num_iterations=2 grpo.beta=0.1 grpo.top_entropy_quantile=0.5 grpo.mask_truncated_completions=true optimizer.lr=1e-3
    log.rollouts=true)
told() { sed -E 's/, "(step_time|tokens_per_second|memory[a-z_/]*|flops_per_second|mfu|grpo\/time\/[a-z]*)": [^,}]*//g' "$tmp/$1/metrics.jsonl"; }
for layout in "1 0" "2 3" "3 2" "4 1"; do
    read -r np stage <<<"$layout"
    train "$np" "bits$np" "${all[@]}" zero.stage="$stage"
    expect "$np ranks at stage $stage: planned is allocated" as_planned
    [ "$np" = 1 ] || {
        expect "$np ranks at stage $stage: the same bits" same_model "$(newest bits1)" "$(newest "bits$np")"
        expect "$np ranks at stage $stage: the same metrics" alike "$(told bits1)" "$(told "bits$np")"
        expect "$np ranks at stage $stage: the same completions" cmp "$tmp/bits1/rollouts.jsonl" "$tmp/bits$np/rollouts.jsonl"
    }
done
expect "--plan has said so" as_plan_says 4 1 "${all[@]}"
expect "there are several turns" above bits1 grpo/environment/turns 1.5
expect "calls are read" above bits1 grpo/tools/call_frequency 0.5
expect "completions are the model's tokens and the environment's" python3 - "$tmp/bits1" <<'PY'
import json, sys
rows = {}
for line in map(json.loads, open(sys.argv[1] + "/rollouts.jsonl")):
    for ids, mask, logps, old in zip(line["completion_ids"], line["tool_mask"], line["logps"], line["old_logp"]):
        assert len(ids) == len(mask) <= 120 and sum(mask) == len(logps) == len(old), line
        begins = [i for i, m in enumerate(mask) if i and m and not mask[i - 1]]
        assert all(ids[i - 1] == 10 for i in begins), line  # the template's line end
        assert all(mask[i - 1] or ids[i - 1] != 256 for i in range(1, len(ids))), line
        rows.setdefault(line["step"], []).append((sum(mask), 1 + len(begins), len(mask) - sum(mask)))
for line in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")):
    of = rows[max(s for s in rows if s <= line["step"])]
    for name, k in (("completions/mean_length", 0), ("environment/observed_tokens", 2)):
        assert abs(line["grpo/" + name] - sum(r[k] for r in of) / len(of)) < 1e-6, (line, of)
    assert line["grpo/sampling/sampling_logp_difference/max"] < 1e-3, line
PY
train 2 halves "${all[@]}" run.max_steps=3
train 3 halves "${all[@]}" zero.stage=2 checkpoint.resume=auto
expect "resumed inside a generation: the same bits" same_model "$(newest bits1)" "$(newest halves)"
train 2 replayed "${all[@]}" grpo.environment= grpo.rollouts="$tmp/bits1/rollouts.jsonl" data.train= data.shuffle=false log.rollouts=false
expect "replayed: the same bits" same_model "$(newest bits1)" "$(newest replayed)"
expect "nothing is wrong in this" sh -c "! grep -q 'warning: .*environment' '$out'"

# Answers may come late, and in another order.
cat >"$tmp/late.py" <<'PY'
import json, subprocess, sys, threading, time, queue
inner = subprocess.Popen([sys.executable, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
lock = threading.Lock()
def later(answer, wait):
    time.sleep(wait)
    with lock:
        print(json.dumps(answer), flush=True)
for n, line in enumerate(sys.stdin):
    inner.stdin.write(line)
    inner.stdin.flush()
    answer = json.loads(inner.stdout.readline()) | {"episode": json.loads(line)["episode"]}
    threading.Thread(target=later, args=(answer, 0.03 * (n * 7 % 5))).start()
PY
for layout in "1 0" "2 3"; do
    read -r np stage <<<"$layout"
    train "$np" late "${all[@]}" "grpo.environment=command:python3 $tmp/late.py $tmp/environment.py" zero.stage="$stage"
    expect "late answers on $np ranks at stage $stage: the same bits" same_model "$(newest bits1)" "$(newest late)"
    rm -rf "$tmp/late"
done

# Rewards of turns are added, unread calls have failed, and later turns begin without thoughts if the prompt does.
cat >"$tmp/off.jinja" <<'JINJA'
{%- for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{% for c in m.tool_calls or [] %}": {{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}
{%- endfor %}{{ eos_token }}{% else %}{{ m.content + "\n" }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'no:' if enable_thinking is defined and not enable_thinking }}{% endif %}
JINJA
data --kind prompts --no-think --template "$tmp/off.jinja" -o "$tmp/off.h5" "$tmp/prompts.jsonl"
cat >"$tmp/counts.py" <<'PY'
import json, sys
for line in sys.stdin:
    t = json.loads(line)
    n = len(t["tool_calls"]) + t["unread_calls"]
    with open(sys.argv[1], "a") as f:
        print(json.dumps([n, t["unread_calls"] + n // 2, t["unread_calls"]]), file=f)
    print(json.dumps({"reward": 0.25, "failures": n // 2} | ({} if t["last"] or t["turn"] == 3 else {"observation": "1"})), flush=True)
PY
train 1 counts "${all[@]}" data.train="$tmp/off.h5" grpo.environment="command:python3 $tmp/counts.py $tmp/counted" run.max_steps=1 grpo.temperature=1.3
expect "rewards, failures and later turns without thoughts" python3 - "$tmp/counts" "$tmp/counted" <<'PY'
import json, sys
n_later = 0
for line in map(json.loads, open(sys.argv[1] + "/rollouts.jsonl")):
    for ids, mask, reward in zip(line["completion_ids"], line["tool_mask"], line["rewards"]):
        begins = [i for i, m in enumerate(mask) if i and m and not mask[i - 1]]
        assert reward == [0.25 * (1 + len(begins))], (reward, mask)
        assert all(bytes(ids[i - 3:i]) == b"no:" for i in begins), ids
        n_later += len(begins)
n, n_failed, n_unread = (sum(x) for x in zip(*map(json.loads, open(sys.argv[2]))))
metrics = json.loads(open(sys.argv[1] + "/metrics.jsonl").readline())
assert n_later > 10 and n_unread > 0 and abs(metrics["grpo/tools/failure_frequency"] - n_failed / n) < 1e-6, (n_later, n, n_failed, n_unread, metrics)
PY

# An observation may end exactly at the limit; a longer one is left out. The completion has at most 64 tokens, those of the template among them.
cat >"$tmp/fills.py" <<'PY'
import json, sys
for line in sys.stdin:
    t = json.loads(line)
    print(json.dumps({"reward": 0} if t["last"] else {"observation": "1" * max(1, 64 - len(t["completion"]) - t["episode"] % 6)}), flush=True)
PY
train 1 fills "${all[@]}" "grpo.environment=command:python3 $tmp/fills.py" run.max_steps=2 grpo.max_completion_length=64
expect "an observation that fits exactly is taken" python3 - "$tmp/fills" <<'PY'
import json, sys
masks = [mask for line in open(sys.argv[1] + "/rollouts.jsonl") for mask in json.loads(line)["tool_mask"]]
assert max(map(len, masks)) == 64 and any(len(mask) == 64 and not mask[-1] for mask in masks), masks
PY

# Limits, other objectives, LoRA.
train 1 one "${all[@]}" grpo.max_tool_calling_iterations=1
expect "at most one result" awk 'BEGIN { while ((getline x) > 0) if (x > 2) exit 1 }' <(number one grpo/environment/turns)
train 1 small "${all[@]}" grpo.max_completion_length=44
expect "a result that does not fit is left out" awk 'BEGIN { while ((getline x) > 0) if (x > 44) exit 1 }' <(number small grpo/completions/max_length)
for advantage in rloo reinforce reinforce++ reinforce++-baseline; do
    for np in 1 2; do
        train "$np" "$advantage$np" "${all[@]}" grpo.advantage="$advantage" grpo.top_entropy_quantile=1 zero.stage=$((3 * np - 3))
    done
    expect "$advantage: the same bits on 2 ranks" same_model "$(newest "${advantage}1")" "$(newest "${advantage}2")"
done
train 2 lora "${all[@]}" lora.r=4 zero.stage=3
expect "LoRA: turns are made" above lora grpo/environment/turns 1.5
train 2 both "${all[@]}" grpo.reward_funcs=length:3 grpo.overlong_cache=4 data.validation="$tmp/prompts.h5" data.validation_steps=2 grpo.dynamic_sampling=true
expect "with other functions and a validation" above both grpo/validation_rewards/environment 0
train 1 bf16 "${all[@]}" precision.dtype=bf16
expect "bf16: turns are made" above bf16 grpo/environment/turns 1.5

# Programs that fail: all ranks end with the reason.
broken() { # NAME TEXT SCRIPT [ARGS...]
    local name=$1 text=$2
    printf '%s\n' "$3" >"$tmp/broken.sh"
    shift 3
    rm -rf "$tmp/broken"
    RUN_TIMEOUT=90 ends_saying "$name: exit code" 65 "$text" train 2 broken "${all[@]}" "grpo.environment=command:bash $tmp/broken.sh" zero.stage=3 "$@"
}
broken "a program that ends" 'it ended with exit status 3 after 0 of [0-9]+ answers' 'read -r line; exit 3'
broken "a program that is killed" 'signal 9 .* ended it' 'read -r line; kill -9 $$'
broken "a program that hangs" 'no answer for 3 s .comm.timeout.' 'sleep 1000' comm.timeout=3
broken "a program that closes its input" 'it closed its input|it ended with' 'exec <&-; sleep 5; exit 0'
broken "a program that closes its output" 'it closed its output' 'exec >&-; sleep 20'
broken "nonsense" 'answer 1 of [0-9]+: expected a JSON object such as' 'while read -r line; do echo nonsense; done'
broken "an answer before the question" 'it sent an answer without a request' 'echo {}; while read -r line; do echo {}; done'
broken "two answers to a question" 'it sent an answer without a request' 'while read -r line; do printf "{}\n{}\n"; done'
broken "a flood" 'expected at most 65536 bytes' 'read -r line; while :; do printf %065537d 0; done'
broken "a flood of lines" 'expected a JSON object|without a request' 'read -r line; while :; do echo 1; done'
broken "an unknown field" 'unknown field rewrad; known are episode' 'while read -r line; do echo "{\"rewrad\": 1}"; done'
broken "a wrong role" 'role: expected tool or user' 'while read -r line; do echo "{\"observation\": \"1\", \"role\": \"assistant\"}"; done'
broken "no observation" 'done is false, but there is no observation' 'while read -r line; do echo "{\"done\": false}"; done'
broken "an observation that is no text" 'observation: expected a text, a list of texts, or null' 'while read -r line; do echo "{\"observation\": 3}"; done'
broken "messages that are none" 'messages' 'while read -r line; do echo "{\"messages\": [{\"role\": \"tool\"}]}"; done'
broken "another episode" 'episode: expected that of a turn without an answer' 'while read -r line; do echo "{\"episode\": 123456789}"; done'
broken "an episode that is no number" 'episode: expected that of a turn without an answer' \
    'while read -r line; do case $line in *"\"episode\":0,"*) echo "{\"episode\": \"0\"}" ;; *) echo "{}" ;; esac; done'
broken "a reward that is no number" 'reward: expected a number from -1e30 to 1e30, or null' 'while read -r line; do echo "{\"reward\": \"1\"}"; done'
refuse() { # NAME TEXT ARGS...
    local name=$1 text=$2
    shift 2
    ends_saying "$name: exit code" 64 "$text" train 2 refused "${all[@]}" "$@"
}
refuse "no command" 'grpo.environment: expected command:PROGRAM ARGS, found python3' "grpo.environment=python3 x"
refuse "no program" 'no-such-program does not exist, or is not executable' grpo.environment=command:no-such-program
refuse "with beams" 'rollout: expected sample with grpo.environment' grpo.rollout=beam grpo.top_entropy_quantile=1
refuse "with tensor parallelism" 'environment: expected mesh.tp = 1 and mesh.cp = 1' mesh.tp=2
for point in environment.start environment.answer rollout.generate rollout.share generate.pass; do
    for stage in 0 3; do
        fails_alone 1 $point 1 train 2 "failed-$point-$stage" "${all[@]}" zero.stage=$stage
    done
done
DTRAIN_FAULT=environment.answer:0:9:stop start 2 stopped "${all[@]}"
stop_at stopped 1 TERM
ends "a signal while turns are made" 75 finish stopped
train 1 stopped "${all[@]}" checkpoint.resume=auto
expect "a run resumes after a signal with the same bits" same_model "$(newest bits1)" "$(newest stopped)"

# The tiny model learns which digit the environment likes after results; tools/agent.sh runs.
train 2 learns "${all[@]}" run.max_steps=40 grpo.num_iterations=1 grpo.beta=0 grpo.top_entropy_quantile=1 batch.train_batch_size=32 batch.micro_batch_size=16 \
    grpo.num_generations=8 optimizer.lr=1e-3 grpo.mask_truncated_completions=false log.rollouts=false
expect "the reward rises from chance" awk 'BEGIN { getline x; exit !(x < 0.8) }' <(number learns grpo/reward)
expect "to above 0.9" above learns grpo/reward 0.9
ends_saying "tools/agent.sh" 0 'calls per answer in the first 3 steps' run 0 env RUNS="$tmp/toy" LARGEST=3 \
    SETTINGS="run.threads=1 run.max_steps=3 batch.train_batch_size=32 batch.micro_batch_size=16" tools/agent.sh
e2e_done

#!/usr/bin/env python3
"""make_agent_fixtures.py - tests/data/grpo/agent: results of TRL's GRPOTrainer with an environment_factory, for given turns of the model.

    python3 tests/make_agent_fixtures.py             (a development tool: needs torch, transformers, trl, jmespath)

The model is tests/data/dpo/start with 256 positions, in fp32 on the CPU; 256 ends a turn. TRL parses the calls, calls the tool, encodes its results and masks
them; only the sampled tokens are given.
rollouts.jsonl   a group a line: prompt_ids, completion_ids, tool_mask (0: the environment's), rewards
trl.json         runs of ten steps (tests/trl_runs.py)
turns.json       the template, and of each first turn with calls: its text, the calls as TRL parses them, the results, the ids that TRL puts after it
"""
import json
import os
import random
import tempfile

import torch
import trl.trainer.grpo_trainer as grpo_trainer
from datasets import Dataset
from transformers import LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from trl_runs import DATA, bytes_tokenizer, train, write

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
STEPS, ROWS, GROUP, MOST, LR, END = 10, 8, 4, 120, 1e-2, 256
RUNS = [  # name, settings of TRL, keys of dtrain
    ("defaults", {}, ""),
    ("grpo with kl", {"loss_type": "grpo", "beta": 0.1}, "loss_type=grpo beta=0.1"),
    ("gspo twice", {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04, "num_iterations": 2},
     "loss_type=grpo importance_sampling_level=sequence epsilon=0.03 epsilon_high=0.04 num_iterations=2"),
    ("dr_grpo in two steps", {"loss_type": "dr_grpo", "scale_rewards": "none", "steps_per_generation": 2, "num_iterations": 2},
     "loss_type=dr_grpo scale_rewards=none steps_per_generation=2 num_iterations=2"),
    ("top entropies", {"top_entropy_quantile": 0.4, "beta": 0.1}, "top_entropy_quantile=0.4 beta=0.1"),
    ("truncated ones masked", {"mask_truncated_completions": True, "loss_type": "bnpo"}, "mask_truncated_completions=true loss_type=bnpo"),
    ("sapo twice", {"loss_type": "sapo", "num_iterations": 2}, "loss_type=sapo num_iterations=2"),
    ("one result", {"max_tool_calling_iterations": 1, "loss_type": "cispo", "epsilon_high": 1.05, "num_iterations": 3},
     "loss_type=cispo epsilon_high=1.05 num_iterations=3"),
]
TEMPLATE = ("{% for m in messages %}{% if m.role == 'assistant' %}A:{{ m.content }}{% for c in m.tool_calls or [] %}"
            "<c>{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</c>{% endfor %}{{ eos_token }}\n"
            "{% elif m.role == 'tool' %}<r>{{ m.content }}</r>\n{% else %}{{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}")
out = DATA / "grpo" / "agent"
out.mkdir(exist_ok=True)
draw = random.Random(5)


def text_of(n):
    return "".join(draw.choice("abcdefgh ") for _ in range(n))


def call(x):
    return f'<c>{{"name": "f", "arguments": {{"x": {x}}}}}</c>'


def turns_of(k):
    """Texts of a completion's turns, and whether the last one ends."""
    kind = draw.randrange(6)
    if kind == 0:
        return [text_of(draw.randint(3, 20)) + str(k)], draw.random() < 0.7
    first = {1: call(draw.randrange(50)), 2: text_of(5) + call(k) + call(draw.randrange(9)), 3: '<c>{"name": "g", "arguments": {"x": 1}}</c>'}.get(kind, call(k))
    turns = [first, text_of(draw.randint(1, 12))]
    if kind == 5:
        turns[1:1] = [call(draw.randrange(100, 999))]
    return turns, draw.random() < 0.8


groups = []
for i in range(2 * STEPS):
    of = {}
    while len(of) < GROUP:
        turns, ends = turns_of(len(of))
        ids = [list(t.encode()) + [END] for t in turns]
        if not ends:
            ids[-1].pop()
        of[tuple(ids[0])] = ids
    groups.append({"prompt": f"{draw.choice(['so', 'it', 'who'])} {i}", "turns": list(of.values()), "rewards": [draw.choice([0, 1, 1, 2, 3]) / 2 for _ in range(GROUP)]})


def environment_of(rewards):
    class environment:
        def reset(self, number, **_):
            self.number = number

        def f(self, x: int) -> str:
            """Square.

            Args:
                x: a number
            """
            return str(x * x)

        def get_reward(self):
            return rewards.pop(0)
    return environment


class Given(GRPOTrainer):
    """Sampled tokens are given; everything else is TRL's."""
    at = 0
    lines = None

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        if not self.turn_of:  # the first turn of all rows
            self.turn_of = [[g, k, 0] for g in range(self.at, self.at + len(prompt_ids) // GROUP) for k in range(GROUP)]
            self.live = list(range(len(prompt_ids)))
        else:
            begins = {tuple(self.prompt_ids[i] + sum(self.parts[i], [])): i for i in range(len(self.turn_of))}
            self.live = [next(i for start, i in begins.items() if tuple(ids[:len(start)]) == start) for ids in prompt_ids]
            for i, ids in zip(self.live, prompt_ids):
                self.parts[i].append(ids[len(self.prompt_ids[i]) + len(sum(self.parts[i], [])):])
        made = []
        for i, ids in zip(self.live, prompt_ids):
            g, k, n = self.turn_of[i]
            if n == 0:
                self.prompt_ids.append(ids)
                self.parts.append([])
            made.append(groups[g % len(groups)]["turns"][k][n])
            self.parts[i].append(made[-1])
            self.turn_of[i][2] += 1
        return [list(m) for m in made], None

    def _generate(self, prompts):
        self.turn_of, self.prompt_ids, self.parts = [], [], []
        for g in range(self.at, self.at + len(prompts) // GROUP):
            self.rewards.extend(groups[g % len(groups)]["rewards"])
        result = super()._generate(prompts)
        ids, mask = result[1], result[2]
        for j in range(0, len(prompts), GROUP):
            self.lines.append({"prompt_ids": result[0][j], "completion_ids": ids[j:j + GROUP], "tool_mask": mask[j:j + GROUP],
                               "rewards": [[r] for r in groups[(self.at + j // GROUP) % len(groups)]["rewards"]]})
        self.at += len(prompts) // GROUP
        return result


grpo_trainer.shuffle_sequence_dict = lambda batch: batch  # data.shuffle = false
tokenizer = bytes_tokenizer(padding_side="left")
tokenizer.chat_template = TEMPLATE
tokenizer.response_template = {
    "defaults": {"role": "assistant"}, "start_anchor": "A:",
    "fields": {"tool_calls": {"open": "<c>", "close_pattern": r"</c>\s*", "repeats": True, "content": "json", "transform": {"type": "function", "function": "{content}"}},
               "content": {"close_pattern": r"<eos>\s*", "content": "text"}}}
runs, files = [], {}
with tempfile.TemporaryDirectory() as work:
    for name, settings, keys in RUNS:
        arguments = GRPOConfig(output_dir=work, max_steps=STEPS, learning_rate=LR, lr_scheduler_type="constant", weight_decay=0.1, max_grad_norm=1.0,
                               logging_steps=1, report_to=[], bf16=False, use_cpu=True, save_strategy="no", gradient_checkpointing=False, use_bias_correction_kl=False,
                               num_generations=GROUP, max_completion_length=MOST, shuffle_dataset=False, per_device_train_batch_size=ROWS, **settings)
        model = LlamaForCausalLM.from_pretrained(DATA / "dpo" / "start", dtype=torch.float32, max_position_embeddings=256)
        rewards = []
        rows = [{"prompt": [{"role": "user", "content": g["prompt"]}], "number": i} for i, g in enumerate(groups)]
        trainer = Given(model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, environment_factory=environment_of(rewards))
        trainer.lines, trainer.rewards = [], rewards
        run = train(trainer, {"learning_rate", "sampling", "tools/call_frequency", "tools/failure_frequency"})
        run["metrics"] = [k.replace("rewards/environment/", "rewards/reward_0/") for k in run["metrics"]]
        file = "one" if "max_tool_calling_iterations" in settings else "rollouts"
        for i, line in enumerate(trainer.lines):
            assert files.setdefault(file, trainer.lines)[i] == line
        if len(files[file]) < len(trainer.lines):
            files[file] = trainer.lines
        runs.append({"name": name, "keys": " ".join("grpo." + k for k in keys.split()), "start": "dpo/start", "data": file} | run)
        print(name, [round(s[0], 5) for s in run["steps"]])
for name, lines in files.items():
    with open(out / f"{name}.jsonl", "w") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines[:2 * STEPS])
write(out / "trl.json", runs)

turns = []
for line in files["rollouts"][:4]:
    for ids, mask in zip(line["completion_ids"], line["tool_mask"]):
        if 0 not in mask:
            continue
        first = mask.index(0)
        end = first + (mask[first:].index(1) if 1 in mask[first:] else len(mask) - first)
        parsed = grpo_trainer.parse_response(tokenizer, ids[:first], prefix=line["prompt_ids"])
        results = [t.split("</r>")[0] for t in bytes(i for i in ids[first:end] if i < 256).decode().split("<r>")[1:]]
        turns.append({"text": tokenizer.decode(ids[:first]), "calls": [c["function"] for c in parsed["tool_calls"]], "results": results, "ids": ids[first:end]})
(out / "turns.json").write_text(json.dumps({"template": TEMPLATE, "turns": turns}, indent=None) + "\n")

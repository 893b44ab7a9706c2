"""Text that transformers generates with tiny models of each family, greedily and by beam search: the expectations of test_beams.c.

    python tests/make_generate_fixtures.py tests/data/generate

needs torch and transformers; nothing else in the tree does. Models are those of make_model_fixtures.py (weights by formula), so a file holds
the configuration, prompts and results only. Several ids end a sequence, so that some do.
"""
import json
import os
import sys

import torch

import own_code_models
from make_model_fixtures import CASES, build, forget_length, mix64, np

NAMES = ["gpt2", "gpt2_variant", "llama", "llama_linear", "llama_dynamic", "mistral", "qwen2", "qwen3", "olmo2", "granite", "smollm3",
         "gemma2", "gemma3_text", "olmo3", "seed_oss", "phi3_partial", "glm", "glm4", "qwen3_moe", "qwen3_moe_many", "mixtral",
         "qwen3_5", "qwen3_5_long", "internlm3", "ministral3", "phi3", "qwen2_moe", "qwen3_5_moe",
         "deepseek_v3", "deepseek_v3_plain", "deepseek_v2", "glm4_moe", "gpt_oss", "qwen3_next", "internlm2", "chatglm"]
EOS, NEW, LENS = [2, 13, 28, 40], 12, [1, 4, 9]
SEARCHES = [dict(num_beams=3, length_penalty=1.0, early_stopping=False, num_return=3),
            dict(num_beams=4, length_penalty=0.0, early_stopping=True, num_return=2),
            dict(num_beams=5, length_penalty=2.0, early_stopping=False, num_return=1),
            dict(num_beams=2, length_penalty=-0.5, early_stopping=False, num_return=2),
            dict(num_beams=8, length_penalty=0.7, early_stopping=True, num_return=8),
            dict(num_beams=4, length_penalty=1.0, early_stopping=False, num_return=4, repetition_penalty=1.3),
            dict(num_beams=3, length_penalty=0.5, early_stopping=True, num_return=2, repetition_penalty=0.7)]

# Tokens that may not follow; num_beams 1: greedily. They do not depend on the family: three models do.
RULED = NAMES[:3]
RULES = [dict(num_beams=1, min_new_tokens=4), dict(num_beams=1, no_repeat_ngram_size=1), dict(num_beams=1, no_repeat_ngram_size=2),
         dict(num_beams=1, suppress_tokens=list(range(0, 60, 3))), dict(num_beams=1, begin_suppress_tokens=list(range(0, 60, 2)), min_length=9),
         dict(num_beams=3, min_new_tokens=5, suppress_tokens=list(range(1, 60, 4))),
         dict(num_beams=4, no_repeat_ngram_size=2, begin_suppress_tokens=list(range(0, 60, 2)), repetition_penalty=1.3),
         dict(num_beams=2, min_length=8, no_repeat_ngram_size=1, suppress_tokens=[2, 13], repetition_penalty=0.7)]


def prompts(vocab_size):
    with np.errstate(over="ignore"):
        ids = [mix64(np.uint64(7777 * s) + np.arange(n, dtype=np.uint64)) % np.uint64(vocab_size) for s, n in enumerate(LENS)]
    return [[int(i) for i in row] for row in ids]


def run(model, prompt, **how):
    forget_length(model)
    with torch.no_grad():
        out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
                             max_new_tokens=NEW, eos_token_id=EOS, pad_token_id=60, return_dict_in_generate=True, output_scores=True, **how)
    rows = []
    for row in out.sequences.tolist():
        new = row[len(prompt):]
        ends = [i for i, t in enumerate(new) if t in EOS]
        rows.append(new[:ends[0] + 1] if ends else new)
    return rows, out


def make(name):
    model = build(CASES[name], torch.float32).eval()
    if name in own_code_models.HF:
        model = own_code_models.as_transformers(model, CASES[name]).eval()
    result = dict(config=CASES[name], eos=EOS, max_new_tokens=NEW, prompts=prompts(model.config.vocab_size), greedy=[], searches=[])
    for prompt in result["prompts"]:
        result["greedy"].append(run(model, prompt)[0][0])
    for how in SEARCHES:
        found = []
        for prompt in result["prompts"]:
            rows, out = run(model, prompt, num_beams=how["num_beams"], length_penalty=how["length_penalty"], early_stopping=how["early_stopping"],
                            num_return_sequences=how["num_return"], repetition_penalty=how.get("repetition_penalty", 1.0))
            found.append([dict(ids=ids, score=float("%.9g" % s)) for ids, s in zip(rows, out.sequences_scores.tolist())])
        result["searches"].append(dict(how, found=found))
    for how in RULES if name in RULED else []:
        found = []
        for prompt in result["prompts"]:
            rows, out = run(model, prompt, num_return_sequences=how["num_beams"], **how)
            scores = out.sequences_scores.tolist() if how["num_beams"] > 1 else [0]
            found.append([dict(ids=ids, score=float("%.9g" % s)) for ids, s in zip(rows, scores)])
        result.setdefault("rules", []).append(dict(how, num_return=how["num_beams"], length_penalty=1.0, early_stopping=False, found=found))
    return result


if __name__ == "__main__":
    for name in sys.argv[2:] or NAMES:
        with open(os.path.join(sys.argv[1], name + ".json"), "w") as f:
            json.dump(make(name), f, separators=(",", ":"))
            f.write("\n")

#!/usr/bin/env python3
"""Check the chat_template.jinja that dtrain writes against transformers: for every built-in template, some custom ones and
some tokenizers, apply_chat_template on the directory that dtrain-convert wrote must give the ids and the text that dtrain-data
gives, with and without a generation prompt, and return_assistant_tokens_mask the targets.

    python tests/check_jinja.py [PROGRAMS [DRAWN [SEED]]]     the folder of the programs; conversations for each pair

A development check: it needs transformers and h5py, which the tests do not.
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile

import h5py
from transformers import AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
OWN = {
    "edges": {"name": "edges", "begin": "{bos}#}'\\{{ x }}{% raw %}", "default_system": "Be 'brief'.\n", "trim": True, "system_place": "first_user",
              "system": {"prefix": "<<", "after": " >>\n\u3000"}, "user": {"open": "{", "prefix": "Q: ", "after": "\n", "close": "}"},
              "tool": {"open": "(", "prefix": "T", "close": ")"}, "assistant": {"open": "\t", "prefix": "A:", "lead": " ", "end": "{eos}", "after": "\n"}},
    "late": {"default_system": "d", "system_place": "last_user", "system": {"prefix": "\x1f", "after": "\u00e9"}, "user": {"prefix": "Q: ", "after": "{eos}"},
             "assistant": {"lead": " ", "end": "{eos}"}, "trim_answer": True},
    "thinks": {"begin": "", "think_off": "<nothing>\n", "system": {"prefix": "S ", "end": "|", "lead": "-"}, "user": {"prefix": "U ", "end": "\n"},
               "assistant": {"prefix": "A ", "lead": ">", "end": "<|im_end|>"}, "trim": True},
    "bare": {"user": {}, "assistant": {"end": "\n"}},
}
TOKENIZERS = {
    "bytes": None,
    "gpt2": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    "qwen2": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|endoftext|>"},
    "llama2": {"bos_token": "<s>", "eos_token": "</s>"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>"},
    "smollm": {},
}
SAID = ["", " ", "\n", "x", "Hello!", "  two words ", "\n\nlines\n\nbetween\n", "\u3000\u4f60\u597d\u00a0", "\t<b>\x1f", "{{ x }} [INST] <|im_end|", "'s\u2028",
        "\U0001f600", "<tool_response>\nr\n</tool_response>", "<tool_response>r", "\\n {% if %} #}"]
THOUGHT = ["<think>\nwhy\n</think>\n\n", "<think></think>", "<think>\n\n</think>\n\n", "\n<think> a\n\nb </think>", "no opening</think>\n",
           "<think>one</think><think>two</think>\n", "<think>open", "before<think>\nlate\n</think>", "</think>", "\n\n</think>\n\n</think>\n\n"]


def draw(rng):
    """Turns of all kinds, not only in the order that is usual."""
    roles = ["system"] if rng.random() < 0.4 else []
    for _ in range(rng.randint(1, 4)):
        roles += [rng.choice(["user", "user", "user", "human", "tool", "tool"])] * rng.choice([1, 1, 1, 2])
        roles += [rng.choice(["assistant", "assistant", "gpt"])] * rng.choice([1, 1, 1, 2])
        roles += ["system"] if rng.random() < 0.05 else []
    if rng.random() < 0.4:
        roles.pop()
    said = lambda r: (rng.choice(THOUGHT) if r in ("assistant", "gpt") and rng.random() < 0.4 else "") + rng.choice(SAID) + rng.choice(SAID)
    talk = [{"role": r, "content": said(r)} for r in roles] or [{"role": "user", "content": "x"}]
    for m in talk:
        if rng.random() < 0.1:
            m["content"] = [{"type": "text", "text": t} for t in (m["content"][:2], m["content"][2:])]
    return talk


def run(*command):
    p = subprocess.run(command, capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"{' '.join(command)}: {p.returncode}\n{p.stderr}")
    return p.stderr


def ours(programs, folder, tokenizer, template, talks, generate, whole=True):
    """The ids and masks of all conversations that the template takes. Those that the model continues are encoded as one text; of the
    others answers are encoded alone where a token would reach out of them."""
    source, out = os.path.join(folder, "talks.jsonl"), os.path.join(folder, "talks.h5")
    with open(source, "w") as f:
        f.writelines(json.dumps({"prompt" if generate else "messages": t}) + "\n" for t in talks)
    run(f"{programs}/dtrain-data", "-o", out, "--force", "--skip-bad", "--tokenizer", tokenizer, "--template", template, "--no-append-eos",
        "--kind", "prompts" if generate else "sft", *(["--mask", "full"] if whole and not generate else []), source)
    with h5py.File(out) as f:
        tokens, offsets, spec = f["tokens"][:], f["offsets"][:], f.attrs.get("chat_template")
        mask = tokens * 0 if generate else f["loss_mask"][:]
    parts = list(zip(offsets, offsets[1:]))
    return [tokens[a:b].tolist() for a, b in parts], spec, [mask[a:b].tolist() for a, b in parts]


def theirs(tok, talks, generate):
    ids = []
    for t in talks:
        try:
            ids.append((t, tok.apply_chat_template(t, add_generation_prompt=generate, tokenize=True, return_dict=False)))
        except Exception as e:  # a template's raise_exception
            if "expected one system" not in str(e):
                raise
    return ids


def targets_differ(programs, folder, tokenizer, template, tok, talks):
    """The first conversation with equal ids whose targets are not those of the template's generation blocks, with which the
    tokenizer does not tell token 0 apart."""
    for t in [t for t in talks if t[-1]["role"] in ("assistant", "gpt")]:
        try:
            want = tok.apply_chat_template(t, return_dict=True, return_assistant_tokens_mask=True)
        except Exception:
            continue
        ids, _, mask = ours(programs, folder, tokenizer, template, [t], False, whole=False)
        if ids and ids[0] == want["input_ids"] and mask[0][1:] != want["assistant_masks"][1:]:
            return f"targets: {json.dumps(t)}\n  dtrain       {mask[0]}\n  transformers {want['assistant_masks']}"
    return None


def plain(tok, ids):
    """Text without the spaces that some tokenizers put before each part between tokens."""
    return re.sub("(</?s>) *", r"\1", tok.decode(ids))


def check(programs, folder, tokenizer, template, talks):
    out = os.path.join(folder, "hf")
    run(f"{programs}/dtrain-convert", "--force", "--tokenizer", tokenizer, "--chat-template", template, folder, out)
    tok = AutoTokenizer.from_pretrained(out)
    questions = [t for t in talks if t[-1]["role"] not in ("assistant", "gpt")]
    n = 0
    for generate, some in (True, questions), (False, talks):
        want, spec, _ = ours(programs, folder, tokenizer, template, some, generate)
        # training samples without any token to train on are dropped
        found = [(t, i) for t, i in theirs(tok, some, generate) if generate or len(i) > 1]
        if len(want) != len(found):
            return f"generate {generate}: dtrain takes {len(want)} conversations, transformers {len(found)}"
        for w, (t, f) in zip(want, found):
            same = w == f or (not generate and plain(tok, w) == plain(tok, f))
            n += same
            if not same:
                return f"generate {generate}: {json.dumps(t)}\n  dtrain       {tok.decode(w)!r} {w}\n  transformers {tok.decode(f)!r} {f}"
    if "{%- set conversation %}" not in tok.chat_template:  # of what is captured, blocks do not count
        differs = targets_differ(programs, folder, tokenizer, template, tok, talks[:20])
        if differs:
            return differs
    again, spec_again, _ = ours(programs, folder, out, "auto", talks[:1] + questions, False)
    if spec_again != spec:
        return f"{spec} is read back as {spec_again}"
    return f"{n} equal"


def main(programs, n_drawn, seed):
    rng = random.Random(seed)
    talks = [draw(rng) for _ in range(n_drawn)]
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        run(f"{programs}/tests/test_generate", "--make-checkpoint", folder)
        names = json.load(open(f"{HERE}/data/chat/jinja.json")).keys() | {"plain"}
        for name, form in OWN.items():
            json.dump(form, open(f"{folder}/{name}.json", "w"))
        for tokenizer, settings in TOKENIZERS.items():
            path = tokenizer
            if settings is not None:
                path = f"{folder}/tokenizer-{tokenizer}"
                os.mkdir(path)
                os.symlink(f"{HERE}/data/tokenizer/{tokenizer}/tokenizer.json", f"{path}/tokenizer.json")
                if settings:
                    json.dump(dict(settings, tokenizer_class="PreTrainedTokenizerFast"), open(f"{path}/tokenizer_config.json", "w"))
            for template in sorted(names) + [f"{folder}/{n}.json" for n in OWN]:
                result = check(programs, folder, path, template, talks)
                bad += " equal" not in result
                print(f"{tokenizer:8} {os.path.basename(template):16} {result}", flush=True)
    return bad > 0


if __name__ == "__main__":
    arg = dict(enumerate(sys.argv[1:]))
    sys.exit(main(arg.get(0, "build/release"), int(arg.get(1, 300)), int(arg.get(2, 1))))

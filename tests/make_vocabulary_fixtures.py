#!/usr/bin/env python3
"""make_vocabulary_fixtures.py - tests/data/rec/vocabulary: vocabularies that grow by the level tokens of a recommender's items.

    python3 tests/make_vocabulary_fixtures.py        (a development tool: needs torch, transformers)

index.json, info.txt   a catalogue as MiniOneRec has it
tokens.txt             the same level tokens with others, a line each: some are in the vocabularies of tests/data/tokenizer already
tokenizers.json        of each tokenizer added_tokens as transformers writes them when it has added the tokens of tokens.txt, those of the form
                       of level tokens not normalized, and the ids of texts
sft.jsonl              prompts and answers of bytes and level tokens; the end of text (256) follows each answer
frozen.txt             a line "run MODEL" names a model whose vocabulary has grown (new rows are the mean of the rows of ids up to 256); then a line
                       for each step in which level tokens alone are trained: loss and gradient norm. As MiniOneRec freezes a model: a hook on the
                       gradient clears the rows of other tokens. Its optimizer would let their weights decay, were weight_decay not 0: here it does not
rows.txt               a line "run MODEL", then the first four numbers of each row of a level token: before, and after the steps
"""
import json
import pathlib
import random
import re
import shutil
import tempfile

import torch
from fixtures import train_on_answers
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

STEPS, BATCH, LR, DECAY, END = 10, 8, 1e-2, 0.1, 256
here = pathlib.Path(__file__).parent / "data"
out = here / "rec" / "vocabulary"
ITEMS = {str(i): [f"<a_{a}>", f"<b_{b}>", f"<c_{c}>"] for i, (a, b, c) in enumerate([(3, 0, 7), (3, 1, 2), (12, 1, 2), (3, 0, 11), (7, 7, 7)])}
LEVELS = sorted({level for item in ITEMS.values() for level in item})
OTHERS = ["caf\u00e9", "the", "<|im_start|>", "\u0120the", "two words", "\U0001f600"]
TEXTS = ["<a_3><b_0><c_7>\n", "x <a_3> <a_33><a_12><a_1", " <b_1>the cat's <c_2>, the\u0301 ", "caf\u00e9 cafe\u0301 <a_3>caf\u00e9s", "two words<c_11>two  words",
         "\U0001f600<|im_start|>user\n<b_7><b_77>", "", "<a_3", "\u00e9t\u00e9 the \u0120the"]


def tokenizers():
    found = {}
    for name in ("qwen2", "llama2", "gpt2"):
        t = PreTrainedTokenizerFast(tokenizer_file=str(here / "tokenizer" / name / "tokenizer.json"))
        new = sorted(set(LEVELS + OTHERS) - set(t.get_added_vocab()))  # existing added tokens stay unchanged
        t.add_tokens([AddedToken(text, normalized=not re.fullmatch("<[^<> ]+>", text)) for text in new])
        with tempfile.TemporaryDirectory() as folder:
            t.save_pretrained(folder)
            added = json.load(open(pathlib.Path(folder) / "tokenizer.json"))["added_tokens"]
        found[name] = dict(added_tokens=added, texts=TEXTS, ids=[t.encode(text, add_special_tokens=False) for text in TEXTS])
    return found


def ids_of(text):
    """A tokenizer of bytes, with level tokens after the end of text."""
    ids = []
    for piece in re.split("(<[abc]_[0-9]+>)", text):
        ids += [END + 1 + LEVELS.index(piece)] if piece in LEVELS else piece.encode()
    return ids


def grown(path):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    old = [p.detach().clone() for p in matrices(model)]
    model.resize_token_embeddings(END + 1 + len(LEVELS), mean_resizing=False)
    for p, before in zip(matrices(model), old):
        p.data[:END + 1] = before[:END + 1]
        p.data[END + 1:] = before[:END + 1].mean(0)
    model.get_input_embeddings().padding_idx = None  # 257, which is a token now
    return model


def matrices(model):
    embed, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return [embed] if embed is head else [embed, head]


def clear_old(grad):
    grad = grad.clone()
    grad[:END + 1] = 0
    return grad


def train(model, samples):
    model.requires_grad_(False)
    trained = matrices(model)
    for p in trained:
        p.requires_grad_(True)
        p.register_hook(clear_old)
    old = [p.detach().clone()[:END + 1] for p in trained]
    optimizer = torch.optim.AdamW(trained, lr=LR, weight_decay=DECAY, eps=1e-8)

    def keep_old():  # no decay of rows that are not trained
        for p, before in zip(trained, old):
            p.data[:END + 1] = before
    return train_on_answers(model, trained, optimizer, samples, STEPS, BATCH, keep_old)


def rows(model):
    for p in matrices(model):
        for row in p.detach()[END + 1:]:
            yield " ".join(f"{x:.7g}" for x in row[:4].tolist()) + "\n"


def main():
    torch.set_num_threads(1)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    draw = random.Random(5)
    sids = {item: "".join(levels) for item, levels in ITEMS.items()}
    json.dump(ITEMS, open(out / "index.json", "w"), indent=1)
    (out / "info.txt").write_text("".join(f"{sid}\tItem {item}\t{item}\n" for item, sid in sids.items()))
    (out / "tokens.txt").write_text("".join(token + "\n" for token in reversed(OTHERS + LEVELS)))
    json.dump(tokenizers(), open(out / "tokenizers.json", "w"))
    samples, lines = [], []
    for i in range(16):
        history = [sids[draw.choice(list(sids))] for _ in range(draw.randint(1, 3))]
        prompt, answer = f"{', '.join(history)} then ", sids[draw.choice(list(sids))] + "\n"
        lines.append(json.dumps(dict(prompt=prompt, completion=answer)) + "\n")
        samples.append((ids_of(prompt) + ids_of(answer) + [END], len(ids_of(prompt))))
    (out / "sft.jsonl").write_text("".join(lines))
    with open(out / "frozen.txt", "w") as steps, open(out / "rows.txt", "w") as numbers:
        for name, path in (("llama", here / "dpo" / "start"), ("gpt2", here / "lora" / "gpt2")):
            model = grown(path)
            numbers.writelines([f"run {name}\n", *rows(model)])
            steps.writelines([f"run {name}\n", *train(model, samples)])
            numbers.writelines(rows(model))


if __name__ == "__main__":
    main()

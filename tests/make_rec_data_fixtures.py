#!/usr/bin/env python3
"""Write tests/data/rec: a small catalogue and rows in MiniOneRec's files, and the samples that plain Python makes of them.

    x.index.json, x.item.json, x.csv     the files; x.csv has a byte order mark, CRLF, and lists as Python writes them
    qwen2, llama2                        tokenizers of tests/data/tokenizer with the level tokens; the second has BOS
    expected.json                        for each tokenizer and recipe: of every sample the number of ids, of those before the first target, and a
                                         checksum (FNV-1a) of ids and mask; of prompts the answer, too

The loops below follow AkaliKong/MiniOneRec's data.py, with csv, ast.literal_eval and transformers; which of several instructions a row has is drawn as
dtrain draws it. Run with a Python that has transformers; the tests need none. C test: tests/test_data_rec.c.

    python tests/make_rec_data_fixtures.py
"""
import ast
import csv
import json
import os
import shutil

from fixtures import fnv, mix64
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "data", "rec")
SEED, SAMPLING, MAX_LENGTH = 42, 4, 300  # DT_RNG_SAMPLING; some samples are longer

INDEX = {
    "17": ["<a_3>", "<b_1>", "<c_0>"],
    "2": ["<a_3>", "<b_1>", "<c_2>"],
    "x-5": ["<a_0>", "<b_0>", "<c_0>"],
    "40": ["<a_0>", "<b_4>", "<c_2>"],
    "41": ["<a_0>", "<b_4>", "<c_2>"],  # two items of one SID
    "50": ["<a_10>", "<b_4>", "<c_2>"],  # in no item file
}
ITEMS = {
    "17": {"title": 'Pipe "5in", steel', "description": "['A pipe.', 'Of steel']", "brand": "B", "categories": "Pipes"},
    "2": {"title": "Bob's screws\n(100)", "description": ["", "Screws"], "brand": "", "categories": ""},
    "x-5": {"title": "caf\u00e9 \U0001f600 \u4e16\u754c", "description": "", "brand": "", "categories": ""},
    "40": {"title": "", "description": "[nothing] that Python reads", "brand": "", "categories": ""},
    "41": {"title": "{title} {{ }", "description": "{sid}", "brand": "", "categories": ""},
}
ROWS = [("A1", ["2", "x-5"], "17"), ("A2", [], "2"), ("A3", ["40"] * 9, "x-5"), ("A1", ["17"], "41"), ("A4", ["17", "2", "x-5", "41"], "40")]

PREAMBLE = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately "
    "completes the request. \n\n### Instruction:\n"
)


def sid(item):
    return "".join(INDEX[item])


def title(item):
    return ITEMS[item]["title"]


def description(item):
    d = ITEMS[item]["description"]
    try:
        d = ast.literal_eval(d) if isinstance(d, str) and d.startswith("[") else d
    except (SyntaxError, ValueError):
        pass
    return d if isinstance(d, str) else next((t for t in d if t), "")


KEY = mix64(mix64(SEED) ^ (SAMPLING << 32))


def write_files():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    json.dump(INDEX, open(f"{OUT}/x.index.json", "w"), indent=1)
    json.dump(ITEMS, open(f"{OUT}/x.item.json", "w"), indent=1)
    columns = ["user_id", "history_item_title", "item_title", "history_item_id", "item_id", "history_item_sid", "item_sid"]
    with open(f"{OUT}/x.csv", "w", newline="", encoding="utf-8-sig") as f:
        w = csv.writer(f)
        w.writerow(columns)
        for user, history, item in ROWS:
            titles, sids = [title(i) for i in history], [sid(i) for i in history]
            w.writerow([user, repr(titles) if user != "A4" else ascii(titles), title(item), repr(history), item, repr(sids), sid(item)])


def tokenizers():
    for name, bos, eos in (("qwen2", None, "<|endoftext|>"), ("llama2", "<s>", "</s>")):
        t = PreTrainedTokenizerFast(tokenizer_file=f"{HERE}/data/tokenizer/{name}/tokenizer.json", bos_token=bos, eos_token=eos)
        # not normalized: Llama 2's normalizer would look for them with a space before them, and find the first of a SID alone
        t.add_tokens([AddedToken(level, normalized=False) for level in sorted({level for levels in INDEX.values() for level in levels})])
        t.save_pretrained(f"{OUT}/{name}")
        yield name, t


def read_rows():
    for row in csv.DictReader(open(f"{OUT}/x.csv", newline="", encoding="utf-8-sig")):
        yield {k: ast.literal_eval(v) if k.startswith("history_") else v for k, v in row.items()}


INSTRUCTIONS = json.load(open(os.path.join(HERE, "..", "input", "minionerec.json")))["tasks"]["titles-title"]["instruction"]
CATEGORY = "office products"


def sft():
    """(instruction with what comes before it, prompt, target) in the order of a dataset: all tasks of a row, row by row, then items."""
    for i, row in enumerate(read_rows()):
        sids = ", ".join(row["history_item_sid"])
        quoted = ['"' + t + '"' for t in row["history_item_title"]]
        yield ("Can you predict the next possible item that the user may expect?\n\n",
               f"The user has interacted with items {sids} in chronological order. Can you predict the next possible item that the user may expect?",
               row["item_sid"])
        if row["item_title"]:
            yield ("Can you recommend the next item for the user based on their interaction history?\n\n",
                   f"The user has sequentially interacted with items {sids}. Can you recommend the next item for him? Tell me the title of the item",
                   row["item_title"])
            drawn = INSTRUCTIONS[mix64(KEY ^ i) % len(INSTRUCTIONS)].replace("{category}", CATEGORY)
            history = ",\t".join(quoted)
            yield (drawn + "\n \n", f"The user has palyed the following {CATEGORY}s before: {history}", '"' + row["item_title"] + '"')
        yield ("Based on the user's historical interaction with item titles, predict the semantic ID of the next item they may expect.\n\n",
               f"The user has interacted with the following {CATEGORY} items in chronological order: {', '.join(quoted)}. Can you predict the next "
               "item the user may expect?",
               row["item_sid"])
    about = "Answer the question about item identification.\n\n"
    for item in INDEX:
        if item in ITEMS and title(item):
            yield about, f"Which item has the title: {title(item)}?", sid(item)
            yield about, f'What is the title of item "{sid(item)}"?', title(item)


def rl():
    for row in read_rows():
        sids, quoted = ", ".join(row["history_item_sid"]), ['"' + t + '"' for t in row["history_item_title"]]
        yield ("",
               f"The user has interacted with items {sids} in chronological order. Can you predict the next possible item that the user may expect?",
               row["item_sid"])
        yield ("", f"Given the title sequence of user historical interactive items: {', '.join(quoted)}, can you recommend a suitable next item "
               "for the user?", row["item_sid"])
    for item in INDEX:
        if item in ITEMS and title(item):
            yield "", f"Which item has the title: {title(item)}?", sid(item)
        if item in ITEMS and description(item):
            yield "", f'An item can be described as follows: "{description(item)}". Which item is it describing?', sid(item)


def evaluation():
    for instruction, prompt, target in sft():
        if instruction.startswith("Can you predict"):
            yield instruction, prompt, target


def sum_of(ids, mask):
    return f"{fnv(v for pair in zip(ids, mask) for v in pair):016x}"


def sample(t, instruction, prompt, target, recipe):
    encode = lambda text: t.encode(text, add_special_tokens=False)
    ids = [t.bos_token_id] if t.bos_token_id is not None else []
    if instruction:
        ids += encode(PREAMBLE + instruction)
    ids += encode(f"### User Input: \n{prompt}\n\n### Response:\n")
    if recipe != "sft":
        return {"n": len(ids), "sum": sum_of(ids, [0] * len(ids)), "answer": target}
    n_prompt = len(ids)
    ids += encode(target + "\n") + [t.eos_token_id]
    mask = [int(i >= n_prompt) for i in range(len(ids))]
    ids, mask = ids[-MAX_LENGTH:], mask[-MAX_LENGTH:]
    return {"n": len(ids), "n_prompt": mask.index(1), "sum": sum_of(ids, mask)}


write_files()
expected = {}
for name, t in tokenizers():
    for recipe, samples in (("sft", sft), ("rl", rl), ("eval", evaluation)):
        expected[f"{name} {recipe}"] = [sample(t, *texts, recipe) for texts in samples()]
with open(f"{OUT}/expected.json", "w") as f:
    f.write("{\n" + ",\n".join(f"{json.dumps(k)}: [\n" + ",\n".join(json.dumps(s, ensure_ascii=False) for s in v) + "]" for k, v in expected.items()) + "\n}\n")

#!/usr/bin/env python3
"""Write tests/data/chat/thoughts.json: conversations whose answers have their thoughts in a field of their own, as transformers' apply_chat_template
writes them with the template of Qwen3, which reads `reasoning_content`.

Run with a Python that has transformers; the tests need none. C test: tests/test_chat.c.
"""
import json
import os
import random

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from make_chat_fixtures import QWEN3, SAID, say

OWN_FIELD = QWEN3.replace(
    "{%- if '</think>' in content %}",
    "{%- if message.reasoning_content is string %}{%- set reasoning_content = message.reasoning_content %}{%- elif '</think>' in content %}")
THOUGHTS = ["", "why", "\n", "\n\nwhy?\n\nso\n", "<think>\nwhy\n</think>", "a</think>b", " ", "\u4f60 </think>"]
ANSWERS = SAID + ["<think>in</think>out", "\n</think>x", "<think>"]


def draw(rng):
    turns = [("s", "sys")] if rng.random() < 0.3 else []
    for i in range(rng.randint(1, 3)):
        turns.append(("t", "result") if i and rng.random() < 0.4 else ("u", rng.choice(SAID)))
        turns.append(("a", rng.choice(ANSWERS)))
    messages = say(*turns)
    for m in messages:
        if m["role"] == "assistant" and rng.random() < 0.7:
            m["reasoning_content"] = rng.choice(THOUGHTS)
    return messages


def main():
    assert OWN_FIELD != QWEN3
    tok = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>")
    rng = random.Random(1)
    cases = []
    for _ in range(120):
        messages = draw(rng)
        text = tok.apply_chat_template(messages, chat_template=OWN_FIELD, tokenize=False)
        cases.append({"template": "qwen3", "generate": False, "thinking": True, "messages": messages, "text": text})
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "chat", "thoughts.json")
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Write tests/data/chat: conversations as transformers' apply_chat_template writes them, and their ids and targets.

    cases.json   texts of every template that dtrain has by name; tokens are written as <s>, </s>
    own.json     texts of other templates
    jinja.json   the templates, each also as a tokenizer's own
    ids.json     ids and masks of conversations and of prompts with completions, by the tokenizers of tests/data/tokenizer

The templates below are those of the models named, without their checks of roles and their tools. Run with a Python that has
transformers; the tests need none. C test: tests/test_chat.c.

    python tests/make_chat_fixtures.py [FOLDER [DRAWN [SEED]]]    a trial with more conversations: DTRAIN_CHAT_CASES=FOLDER/cases.json test_chat
"""
import json
import os
import random
import re
import sys

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN_TOOL = (
    "{%- elif message.role == 'tool' %}"
    "{%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != 'tool') %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' }}{{- message.content }}{{- '\n</tool_response>' }}"
    "{%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}{{- '<|im_end|>\n' }}{%- endif %}"
)
QWEN25 = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}"
    "{%- endif %}{%- for message in messages %}"
    "{%- if (message.role == 'user') or (message.role == 'system' and not loop.first) or (message.role == 'assistant') %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}" + QWEN_TOOL +
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
QWEN3 = (
    "{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}"
    "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}"
    "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if ns.multi_step_tool and message.role == 'user' and not(message.content.startswith('<tool_response>') and "
    "message.content.endswith('</tool_response>')) %}{%- set ns.multi_step_tool = false %}"
    "{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{%- set content = message.content %}"
    "{%- if (message.role == 'user') or (message.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}"
    "{%- elif message.role == 'assistant' %}{%- set reasoning_content = '' %}"
    "{%- if '</think>' in content %}"
    "{%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last_query_index %}"
    "{%- if loop.last or (not loop.last and reasoning_content) %}"
    "{{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}{{- '<|im_end|>\n' }}" + QWEN_TOOL +
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN3_2507 = QWEN25.replace("{%- else %}{{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}", "")
QWEN3_THINKING = QWEN3[: QWEN3.index("{{- '<|im_start|>assistant\n' }}")] + "{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
LLAMA31 = (
    "{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = '26 Jul 2024' %}{%- endif %}"
    "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}"
    "{%- else %}{%- set system_message = '' %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ' + date_string + '\n\n' }}"
    "{{- system_message + '<|eot_id|>' }}{%- for message in messages %}{%- if message.role == 'tool' %}"
    "{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}{{- message.content | tojson }}{{- '<|eot_id|>' }}{%- else %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
SYSTEM_APART = (
    "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}"
    "{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}{{- bos_token }}"
)
MISTRAL_V1 = SYSTEM_APART + (
    "{%- for message in loop_messages %}{%- if message['role'] == 'user' %}"
    "{%- if loop.first and system_message is defined %}{{- '[INST] ' + system_message + '\n\n' + message['content'] + ' [/INST]' }}"
    "{%- else %}{{- '[INST] ' + message['content'] + ' [/INST]' }}{%- endif %}"
    "{%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}{%- endfor %}"
)
EARLY = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{% else %}{{ raise_exception('unknown role') }}{% endif %}{% endfor %}"
)
MISTRAL_V3 = SYSTEM_APART + (
    "{%- for message in loop_messages %}{%- if message['role'] == 'user' %}"
    "{%- if loop.last and system_message is defined %}{{- '[INST] ' + system_message + '\n\n' + message['content'] + '[/INST]' }}"
    "{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}"
    "{%- else %}{{- ' ' + message['content']|trim + eos_token }}{%- endif %}{%- endfor %}"
)
MINISTRAL = MISTRAL_V3.replace("'[INST] '", "'[INST]'")
MISTRAL_TEKKEN = MINISTRAL.replace("' ' + message['content']|trim", "message['content']")
MISTRAL_V7 = (
    "{{- bos_token }}{%- for message in messages %}{%- if message['role'] == 'user' %}"
    "{{- '[INST]' + message['content'] + '[/INST]' }}{%- elif message['role'] == 'system' %}"
    "{{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}"
    "{%- else %}{{- message['content'] + eos_token }}{%- endif %}{%- endfor %}"
)
ALPACA = (
    "{% if messages[0]['role'] != 'system' %}{{ 'Below is an instruction that describes a task. Write a response that "
    "appropriately completes the request.\n\n' }}{% endif %}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'user' %}{{ '### Instruction:\n' + message['content'] + '\n\n' }}"
    "{% else %}{{ '### Response:\n' + message['content'] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
VICUNA = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = 'A chat between a curious user and an artificial "
    "intelligence assistant. The assistant gives helpful, detailed, and polite answers to the user\\'s questions.' %}{% endif %}"
    "{{ system_message + ' ' }}{% for message in loop_messages %}"
    "{% if message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ' }}"
    "{% else %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
GEMMA_TURN = "{%- if (message['role'] == 'assistant') -%}{%- set role = 'model' -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}"
GEMMA2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}" + GEMMA_TURN +
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
GEMMA3 = (
    "{{ bos_token }}\n{%- if messages[0]['role'] == 'system' -%}\n    {%- if messages[0]['content'] is string -%}\n"
    "        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}\n    {%- else -%}\n"
    "        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}\n    {%- endif -%}\n"
    "    {%- set loop_messages = messages[1:] -%}\n{%- else -%}\n    {%- set first_user_prefix = '' -%}\n"
    "    {%- set loop_messages = messages -%}\n{%- endif -%}\n{%- for message in loop_messages -%}\n"
    "    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}\n"
    "        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\n    {%- endif -%}\n" + GEMMA_TURN +
    "    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else '') }}\n"
    "    {%- if message['content'] is string -%}\n        {{ message['content'] | trim }}\n    {%- elif message['content'] is iterable -%}\n"
    "        {%- for item in message['content'] -%}\n            {%- if item['type'] == 'image' -%}\n                {{ '<start_of_image>' }}\n"
    "            {%- elif item['type'] == 'text' -%}\n                {{ item['text'] | trim }}\n            {%- endif -%}\n"
    "        {%- endfor -%}\n    {%- else -%}\n        {{ raise_exception('Invalid content type') }}\n    {%- endif -%}\n"
    "    {{ '<end_of_turn>\n' }}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n    {{ '<start_of_turn>model\n' }}\n{%- endif -%}\n"
)
OWN = {"gemma-2": GEMMA2, "gemma-3": GEMMA3}  # dtrain has none of these by name
TEMPLATES = {
    "chatml": CHATML, "qwen2": QWEN2, "qwen2.5": QWEN25, "qwen3": QWEN3, "qwen3-2507": QWEN3_2507, "qwen3-thinking-2507": QWEN3_THINKING,
    "llama-3": LLAMA3, "llama-3.1": LLAMA31, "llama-2": LLAMA2, "mistral-v1": MISTRAL_V1,
    "mistral-v0.1": EARLY.replace("eos_token }}", "eos_token + ' ' }}"), "mixtral": EARLY, "mistral-v3": MISTRAL_V3, "ministral": MINISTRAL, "mistral-tekken": MISTRAL_TEKKEN, "mistral-v7": MISTRAL_V7,
    "alpaca": ALPACA, "vicuna": VICUNA,
}


def say(*turns):
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[r], "content": c} for r, c in turns]


CONVERSATIONS = [
    say(("u", "Hi")),
    say(("u", "Hi"), ("a", "Hello!")),
    say(("s", "Be brief."), ("u", "1+1?"), ("a", "2"), ("u", "And\nmore?")),
    say(("s", "Be brief."), ("u", "1+1?"), ("a", "2"), ("u", "2+2?"), ("a", "4, \u4f60\u597d \U0001f600")),
    say(("u", "  spaced\n"), ("a", "\n and \u00a0\u3000trimmed\t\n"), ("u", "\u3000")),
    say(("s", " sys "), ("u", " kept in front "), ("a", " x ")),
]
THOUGHTS = [
    say(("u", "a"), ("a", "<think>\nfirst\n</think>\n\none"), ("u", "b"), ("a", "<think>\nsecond\n</think>\n\ntwo")),
    say(("u", "a"), ("a", "<think>\nfirst\n</think>\n\none"), ("u", "b"), ("a", "two")),
]
TOOLS = [
    say(("u", "weather?"), ("a", "call"), ("t", "rain"), ("t", "wind"), ("a", "wet")),
    say(("u", "weather?"), ("a", "call"), ("t", "rain")),
]


EARLY_ONES = ("mistral-v0.1", "mixtral", "gemma-2")  # these refuse system messages
THINK = ("qwen3", "qwen3-thinking-2507")
KNOW_TOOLS = THINK + ("qwen2.5", "qwen3-2507", "qwen2", "chatml", "llama-3")
N_DRAWN = 10
SAID = ["", " ", "\n", "x", "Hello!", "  two words ", "\n\nlines\n\nbetween\n", "\u3000\u4f60\u597d\u00a0", "\t<b>\x1f", "{{ x }} [INST] <|im_end|", "</s>", "'s\u2028"]
THOUGHT = ["<think>\nwhy\n</think>\n\n", "<think></think>", "<think>\n\n</think>\n\n", "\n<think> a\n\nb </think>", "no opening</think>\n", "<think>one</think><think>two</think>\n",
           "<think>\n<think>\n\nin\n</think>\n", "<think>open", "before<think>\nlate\n</think>", "</think>", "\n\n</think>\n\n</think>\n\n"]


def draw(rng, tools):
    """A conversation: at times a system message, questions and answers in turn, or results of tools for a question; thoughts in any answer."""
    turns = [("s", rng.choice(SAID))] if rng.random() < 0.4 else []
    for i in range(rng.randint(1, 4)):
        if tools and i and rng.random() < 0.4:
            turns += [("t", rng.choice(SAID))] * rng.randint(1, 2)
        else:
            turns.append(("u", rng.choice(SAID + (["<tool_response>\nr\n</tool_response>", "<tool_response>r"] if tools else []))))
        turns.append(("a", (rng.choice(THOUGHT) if rng.random() < 0.5 else "") + rng.choice(SAID)))
    return say(*(turns[:-1] if rng.random() < 0.3 else turns))


def drawn(name, n, seed):
    """The same for all templates that know no tools."""
    tools = name in KNOW_TOOLS
    rng = random.Random(seed)
    return [draw(rng, tools) for _ in range(n * (3 if name == "qwen3" else 1))]


def late_system(template, messages):
    """mistral v3 and tekken place the system message in a last question; their Jinja has none where an answer is last."""
    return template in ("mistral-v3", "mistral-tekken", "ministral") and messages[0]["role"] == "system" and messages[-1]["role"] != "user"


FAMILIES = [  # tokenizer, its files' settings, template, and the answers with their ends
    ("qwen2", {"eos_token": "<|im_end|>"}, "qwen2.5", r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)"),
    ("smollm", {"eos_token": "<|im_end|>"}, "chatml", r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)"),
    ("llama3", {"bos_token": "<|begin_of_text|>", "eos_token": "<|endoftext|>"}, "llama-3",
     r"assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)"),
    ("llama2", {"bos_token": "<s>", "eos_token": "</s>"}, "llama-2", r"\[/INST\](.*?</s>)"),
    ("llama2", {"bos_token": "<s>", "eos_token": "</s>"}, "vicuna", r"ASSISTANT:(.*?</s>)"),
    ("mistral", {"bos_token": "<s>", "eos_token": "</s>"}, "mistral-v1", r"\[/INST\](.*?</s>)"),
    ("tekken", {"bos_token": "<s>", "eos_token": "</s>"}, "mistral-tekken", r"\[/INST\](.*?</s>)"),
    ("gpt2", {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}, "alpaca", r"### Response:\n(.*?<\|endoftext\|>)"),
]
PAIRS = [("2+2=", "4"), ("Hello", " world"), ("hel", "lo world"), ("Question: \u4f60", "\u597d"), ("a b ", "c"), ("x\n", "\ny"), ("", "all")]


def load(name, settings):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "tokenizer", name)
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), **settings)


def encode_chat(tok, text, answers):
    """Ids, and 1 for tokens that lie in an answer; None where a token lies in part in one."""
    spans = [m.span(1) for m in re.finditer(answers, text, re.S)]
    enc = tok(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = []
    for begin, end in enc["offset_mapping"]:
        inside = [begin < e and end > b for b, e in spans]
        if any(begin < b < end or begin < e < end for b, e in spans):
            return None
        mask.append(int(any(inside)))
    return enc["input_ids"], [0] + mask[1:]


def encode_pair(tok, prompt, completion, eos):
    """The whole text and the end of the prompt in it; otherwise only the completion after the prompt."""
    whole, alone = tok(prompt + completion)["input_ids"], tok(prompt)["input_ids"]
    parted = whole[: len(alone)] != alone
    if parted:
        whole = alone + tok(completion, add_special_tokens=False)["input_ids"]
    ids = whole + ([eos] if whole[-1:] != [eos] else [])
    return {"ids": ids, "n_prompt": len(alone), "parted": parted}


def family(name, settings, template, answers):
    tok = load(name, settings)
    settings = dict(settings, chat_template=TEMPLATES[template])
    out = {"tokenizer": name, "template": template, "config": settings, "chats": [], "pairs": []}
    for messages in CONVERSATIONS:
        if late_system(template, messages):
            continue
        text = tok.apply_chat_template(messages, chat_template=TEMPLATES[template], tokenize=False)
        found = encode_chat(tok, text, answers)
        if found and template == "llama-3" and messages[-1]["role"] == "assistant":  # <|eot_id|> is no token here: the end of text follows
            found = (found[0] + [tok.eos_token_id], found[1] + [1])
        if found:
            out["chats"].append({"messages": messages, "ids": found[0], "mask": found[1]})
    if name != "llama2" and name != "mistral":  # these put a space before a text that is encoded alone
        for prompt, completion in PAIRS:
            out["pairs"].append(dict(encode_pair(tok, prompt, completion, tok.eos_token_id), prompt=prompt, completion=completion))
    return out


def write_cases(path, templates, n_drawn, seed):
    tok = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>")
    cases = []
    for name, jinja in templates.items():
        todo = CONVERSATIONS + drawn(name, n_drawn, seed) + (THOUGHTS if name in THINK else []) + (TOOLS if name in KNOW_TOOLS else [])
        for messages in todo:
            if late_system(name, messages):
                continue
            if name in EARLY_ONES and messages[0]["role"] == "system":
                continue
            for generate in (False, True):
                for thinking in (True, False) if generate and name in THINK else (True,):
                    text = tok.apply_chat_template(messages, chat_template=jinja, tokenize=False, add_generation_prompt=generate,
                                                   enable_thinking=thinking)
                    cases.append({"template": name, "generate": generate, "thinking": thinking, "messages": messages, "text": text})
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


def main(folder, n_drawn, seed):
    write_cases(os.path.join(folder, "cases.json"), TEMPLATES, n_drawn, seed)
    write_cases(os.path.join(folder, "own.json"), OWN, n_drawn, seed)
    with open(os.path.join(folder, "ids.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(family(*f)) for f in FAMILIES) + "\n]\n")
    with open(os.path.join(folder, "jinja.json"), "w") as f:
        json.dump(dict(TEMPLATES, **OWN), f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "chat")
    main(sys.argv[1] if len(sys.argv) > 1 else here, int(sys.argv[2]) if len(sys.argv) > 2 else N_DRAWN, int(sys.argv[3]) if len(sys.argv) > 3 else 1)

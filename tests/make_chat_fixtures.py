#!/usr/bin/env python3
"""Write tests/data/chat/cases.json: conversations as transformers' apply_chat_template writes them.

The templates below are those of the models named, without their checks of roles and their tools. Run with a Python that has
transformers; the tests need none. Tokens are written as <s>, </s>; C test: tests/test_chat.c.
"""
import json
import os

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
MISTRAL_V3 = SYSTEM_APART + (
    "{%- for message in loop_messages %}{%- if message['role'] == 'user' %}"
    "{%- if loop.last and system_message is defined %}{{- '[INST] ' + system_message + '\n\n' + message['content'] + '[/INST]' }}"
    "{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}"
    "{%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}{%- endfor %}"
)
MISTRAL_TEKKEN = MISTRAL_V3.replace("'[INST] '", "'[INST]'").replace("' ' + message", "message")
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
TEMPLATES = {
    "chatml": CHATML, "qwen2": QWEN2, "qwen2.5": QWEN25, "qwen3": QWEN3, "llama-3": LLAMA3, "llama-2": LLAMA2,
    "mistral-v1": MISTRAL_V1, "mistral-v3": MISTRAL_V3, "mistral-tekken": MISTRAL_TEKKEN, "mistral-v7": MISTRAL_V7,
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


def late_system(template, messages):
    """mistral v3 and tekken place the system message in a last question; their Jinja has none where an answer is last."""
    return template in ("mistral-v3", "mistral-tekken") and messages[0]["role"] == "system" and messages[-1]["role"] != "user"


def main():
    tok = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>")
    cases = []
    for name, jinja in TEMPLATES.items():
        todo = CONVERSATIONS + (THOUGHTS if name == "qwen3" else []) + (TOOLS if name in ("qwen2.5", "qwen3") else [])
        for messages in todo:
            if late_system(name, messages):
                continue
            for generate in (False, True):
                for thinking in (True, False) if generate and name == "qwen3" else (True,):
                    text = tok.apply_chat_template(messages, chat_template=jinja, tokenize=False, add_generation_prompt=generate,
                                                   enable_thinking=thinking)
                    cases.append({"template": name, "generate": generate, "thinking": thinking, "messages": messages, "text": text})
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "chat")
    with open(os.path.join(folder, "cases.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    with open(os.path.join(folder, "jinja.json"), "w") as f:
        json.dump(TEMPLATES, f, indent=1)
        f.write("\n")


main()

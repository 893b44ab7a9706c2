"""Two tiny vision-language models of make_vision_fixtures.py as Hugging Face directories, saved by transformers itself: what e2e_vision_files.sh reads.

    python tests/make_vision_hf_fixtures.py tests/data/vision/hf

needs torch, transformers and peft. clip_llama and siglip_qwen2 are llava-hf as the newest version saves it, with a tokenizer of 61 tokens of which the last is
<image>; NAME_text is its language model alone, clip a whole CLIP, whose vision model is clip_llama's tower, siglip_vision a tower
by itself; clip_llama_peft has adapters, and what is other than in clip_llama once PEFT has merged them.
"""
import json
import os
import shutil
import sys

import peft
import torch
import transformers
from safetensors.torch import save_file

from make_hf_fixtures import save
from make_model_fixtures import weight
from make_vision_fixtures import CASES, build, saved_name

LETTERS = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?"


def write(path, name, value):
    with open(os.path.join(path, name), "w") as f:
        json.dump(value, f, indent=2, sort_keys=True)
        f.write("\n")


GEMMA_TEMPLATE = """{%- for message in messages -%}
{{ ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}
{%- if message['content'] is string -%}
{{ message['content'] | trim }}
{%- else -%}
{%- for item in message['content'] -%}
{%- if item['type'] == 'image' -%}
{{ '<start_of_image>' }}
{%- elif item['type'] == 'text' -%}
{{ item['text'] | trim }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '.\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ 'model\n' }}
{%- endif -%}
"""


def save_gemma(root):
    """Gemma 3, whose tokenizer joins line ends: those around an image and those in the text."""
    path = save(build(CASES["gemma3"]), root, "gemma3")
    own = tokenizer()
    names = ["\u010a", "\u010a\u010a", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
    own["added_tokens"] = [dict(id=56 + i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
                           for i, t in enumerate(names) if i > 1]
    own["model"]["vocab"] = {k: v for k, v in own["model"]["vocab"].items() if v < 56} | {t: 56 + i for i, t in enumerate(names)}
    own["model"]["merges"] = ["\u010a \u010a"]
    write(path, "tokenizer.json", own)
    write(path, "tokenizer_config.json", dict(tokenizer_class="PreTrainedTokenizerFast", model_max_length=1000000, chat_template=GEMMA_TEMPLATE,
                                              boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>"))
    S = CASES["gemma3"]["vision_config"]["image_size"]
    transformers.Gemma3ImageProcessorPil(size=dict(height=S, width=S)).save_pretrained(path)


def tokenizer():
    """Byte-pair encoding without pairs: letters, three special tokens and the placeholder."""
    special = ["<s>", "</s>", "<pad>"]
    letters = {("\u0120" if c == " " else c): i for i, c in enumerate(LETTERS)}
    added = [dict(id=len(letters) + i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for i, t in enumerate(special)] + [dict(id=60, content="<image>", single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)]
    vocab = dict(letters)
    for i in range(len(letters), 60):
        vocab[f"<unused{i}>"] = i
    for i, t in enumerate(special):
        del vocab[f"<unused{len(letters) + i}>"]
        vocab[t] = len(letters) + i
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=byte_level, post_processor=None,
                decoder=byte_level, model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False,
                                               byte_fallback=False, vocab=vocab, merges=[]))


def write_tokenizer(path):
    write(path, "tokenizer.json", tokenizer())
    write(path, "tokenizer_config.json", dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>", pad_token="<pad>",
                                              model_max_length=1000000))


def preprocessor(config):
    S = config["vision_config"]["image_size"]
    if config["vision_config"]["model_type"] == "siglip_vision_model":
        return transformers.SiglipImageProcessor(size=dict(height=S, width=S))
    return transformers.CLIPImageProcessor(size=dict(shortest_edge=S), crop_size=dict(height=S, width=S))


def save_model(name, root):
    config = CASES[name]
    path = save(build(config), root, name)
    write_tokenizer(path)
    preprocessor(config).save_pretrained(path)


def save_language(name, root):
    """The language model of a vision-language model by itself."""
    model = build(CASES[name])
    own = dict(CASES[name]["text_config"])
    cls = dict(llama=transformers.LlamaForCausalLM, qwen2=transformers.Qwen2ForCausalLM)[own.pop("model_type")]
    language = cls(cls.config_class(**own))
    language.model.load_state_dict(model.model.language_model.state_dict())
    language.lm_head.load_state_dict(model.lm_head.state_dict())
    path = save(language, root, name + "_text")
    write_tokenizer(path)


def save_tower(name, root, to):
    tower = build(CASES[name]).model.vision_tower
    path = save(tower, root, to)
    preprocessor(CASES[name]).save_pretrained(path)


def save_whole(root):
    """A CLIP: its vision model is the tower of clip_llama, and its text model in the way."""
    own = {k: v for k, v in CASES["clip_llama"]["vision_config"].items() if k != "model_type"}
    config = transformers.CLIPConfig(vision_config=own, projection_dim=4,
                                     text_config=dict(hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1, vocab_size=8,
                                                      max_position_embeddings=4))
    model = transformers.CLIPModel(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            name = name.replace("vision_model.", "vision_tower.")
            p.copy_(weight(name, tuple(p.shape)) if p.dim() else torch.tensor(1.0))
    path = save(model, root, "clip")
    preprocessor(CASES["clip_llama"]).save_pretrained(path)


def save_adapter(root):
    """What PEFT makes of clip_llama, and the weights that it merges them into."""
    model = build(CASES["clip_llama"])
    before = {k: v.clone() for k, v in model.state_dict().items()}
    options = peft.LoraConfig(r=2, target_modules=r".*language_model.*\.(q_proj|up_proj)", modules_to_save=["multi_modal_projector"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, options)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if p.requires_grad:
                p.copy_(weight(name, tuple(p.shape)))
    path = os.path.join(root, "clip_llama_peft")
    adapted.save_pretrained(path)
    os.remove(os.path.join(path, "README.md"))
    after = adapted.merge_and_unload().state_dict()
    save_file({saved_name(k): v.contiguous() for k, v in after.items() if not torch.equal(v, before[k])}, os.path.join(path, "merged.safetensors"))
    print("clip_llama_peft")


def main():
    torch.set_num_threads(1)
    root = sys.argv[1]
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    for name in ("clip_llama", "siglip_qwen2"):
        save_model(name, root)
        save_language(name, root)
    save_gemma(root)
    save_adapter(root)
    save_whole(root)
    save_tower("siglip_qwen2", root, "siglip_vision")


if __name__ == "__main__":
    main()

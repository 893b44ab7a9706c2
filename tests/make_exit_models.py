"""make_exit_models.py - small models in the shapes that llama.cpp supports, for e2e_exits.sh.

    python tests/make_exit_models.py FOLDER TOKENIZERS NAME...

FOLDER/NAME is a directory without tokenizer. TOKENIZERS/spm and TOKENIZERS/glm are tokenizers that llama.cpp's converter requires of some families:
a tokenizer.model, and tests/data/tokenizer/gpt2 with the special tokens of GLM. Needs torch, transformers and sentencepiece.

llama.cpp has no sliding windows in Mistral, Mixtral, Qwen2 and SmolLM3, takes head_dim from the width of OLMo 2, Qwen2 and others, and has fixed
patterns of layers. The published models have such shapes; the fixtures of make_model_fixtures.py do not.
"""
import json
import os
import shutil
import sys

import sentencepiece
import torch

from make_model_fixtures import CASES, build

SHAPE = dict(hidden_size=64, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=64)
WIDTH = {k: v for k, v in SHAPE.items() if k != "head_dim"}
NO_WINDOW = dict(sliding_window=None, use_sliding_window=False)
LINEAR = dict(SHAPE, linear_key_head_dim=8, linear_value_head_dim=8, rms_norm_eps=1e-6)
CHANGES = {
    "gpt2": dict(n_positions=64, n_embd=64, n_head=2), "llama": SHAPE, "mistral": dict(SHAPE, sliding_window=None), "qwen2": dict(WIDTH, **NO_WINDOW), "qwen3": SHAPE,
    "olmo2": SHAPE, "seed_oss": dict(SHAPE, attention_out_bias=False, mlp_bias=False), "internlm3": SHAPE,
    "ministral3": dict(SHAPE, sliding_window=None), "glm": SHAPE, "glm4": dict(SHAPE, rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5)),
    "granite": dict(WIDTH, num_key_value_heads=2), "smollm3": dict(WIDTH, **NO_WINDOW, num_hidden_layers=4, no_rope_layer_interval=4),
    "gemma2": dict(SHAPE, query_pre_attn_scalar=32),
    "gemma3_text": dict(SHAPE, query_pre_attn_scalar=32, rope_local_base_freq=10000.0, sliding_window_pattern=6, num_hidden_layers=6),
    "qwen2_moe": dict(WIDTH, **NO_WINDOW, mlp_only_layers=[], num_key_value_heads=2),
    "qwen3_moe": dict(SHAPE, mlp_only_layers=[], attention_bias=False), "mixtral": dict(SHAPE, sliding_window=None),
    "gpt_oss": dict(SHAPE, swiglu_limit=7.0, tie_word_embeddings=False, rope_parameters=dict(
        rope_type="yarn", rope_theta=150000.0, factor=4.0, original_max_position_embeddings=16)),
    "deepseek_v2": dict(hidden_size=32, max_position_embeddings=64, topk_method="greedy", n_group=1, topk_group=1),
    "deepseek_v3": dict(hidden_size=32, max_position_embeddings=64, attention_bias=False, n_group=1, topk_group=1, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0)),
    "glm4_moe": dict(SHAPE, n_group=1, topk_group=1, use_qk_norm=False, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
    "qwen3_5": LINEAR, "qwen3_5_moe": LINEAR, "qwen3_next": dict(LINEAR, mlp_only_layers=[]),
}
VOCABULARY = 712


def make_tokenizers(folder):
    source = os.path.join(os.path.dirname(__file__), "data/tokenizer/gpt2")
    shutil.copytree(source, os.path.join(folder, "glm"))
    with open(os.path.join(source, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    for number, text in enumerate(["[gMASK]", "<sop>", "<|user|>", "<|observation|>", "<|system|>", "<|assistant|>"], 701):
        flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
        tokenizer["added_tokens"].append(dict(flags, id=number, content=text, special=True))
    with open(os.path.join(folder, "glm/tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)
    os.makedirs(os.path.join(folder, "spm"))
    sentencepiece.SentencePieceTrainer.train(input=__file__, model_prefix=os.path.join(folder, "spm/tokenizer"), vocab_size=500, model_type="bpe",
                                             byte_fallback=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3, minloglevel=2)


def main():
    folder, tokenizers, *names = sys.argv[1:]
    make_tokenizers(tokenizers)
    for name in names:
        model = build(dict(CASES[name], vocab_size=VOCABULARY, **CHANGES[name]), torch.float32)
        with torch.no_grad():
            for key, p in sorted(model.named_parameters()):
                if p.dim() > 1:
                    p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(len(key))) * 0.3)
        model.save_pretrained(os.path.join(folder, name))


if __name__ == "__main__":
    main()

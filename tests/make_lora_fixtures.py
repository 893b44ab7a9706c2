#!/usr/bin/env python3
"""make_lora_fixtures.py - tests/data/lora: steps of AdamW on adapters of PEFT, which start with the values that dtrain samples.

    python3 tests/make_lora_fixtures.py        (a development tool: needs torch, transformers, peft, bitsandbytes)

sft.jsonl  prompts and answers, those of tests/data/rm/pairs.jsonl, whose tokens are bytes with the end of text (256) after each answer
gpt2/      GPT2LMHeadModel, whose linear layers are stored [in, out]; another model is tests/data/dpo/start, a Llama
moe/       Qwen2MoeForCausalLM
peft.txt   a line "run MODEL KEYS" names a run and the settings of dtrain that are the same; then a line a step: loss and gradient norm
"""
import json
import math
import pathlib
import shutil

import bitsandbytes as bnb
import torch
from fixtures import fnv, mix64, philox, train_on_answers
from make_nf4_fixtures import quantise_maxima
from peft import LoraConfig, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Qwen2MoeConfig, Qwen2MoeForCausalLM
from transformers.pytorch_utils import Conv1D

STEPS, BATCH, LR, DECAY, SEED = 10, 4, 1e-2, 0.1, 42
RUNS = [
    ("llama", dict(r=4, lora_alpha=8), "lora.r=4 lora.alpha=8"),
    ("llama", dict(r=4, lora_alpha=6, target_modules="all-linear", use_rslora=True),
     "lora.r=4 lora.alpha=6 lora.target_modules=all-linear lora.use_rslora=true"),
    ("llama", dict(r=4, lora_alpha=4, target_modules=r".*\.(q_proj|k_proj|v_proj|gate_proj|up_proj)", init_lora_weights="gaussian",
                   rank_pattern={"v_proj": 2, "layers.0.mlp.up_proj": 6}, alpha_pattern={"up_proj": 12}),
     r"lora.r=4 lora.alpha=4 lora.target_modules=.*\.(q_proj|k_proj|v_proj|gate_proj|up_proj) lora.init=gaussian "
     "lora.rank_pattern=v_proj:2,layers.0.mlp.up_proj:6 lora.alpha_pattern=up_proj:12"),
    ("llama", dict(r=2, lora_alpha=2, target_modules=["o_proj", "down_proj"], modules_to_save=["embed_tokens", "lm_head"]),
     "lora.r=2 lora.alpha=2 lora.target_modules=o_proj,down_proj lora.modules_to_save=embed_tokens,lm_head"),
    ("llama", dict(r=4, lora_alpha=4, target_modules="all-linear", modules_to_save=["norm", "layers.0.mlp", "q_proj"]),
     "lora.r=4 lora.alpha=4 lora.target_modules=all-linear lora.modules_to_save=norm,layers.0.mlp,q_proj"),
    ("gpt2", dict(r=4, lora_alpha=8, fan_in_fan_out=True), "lora.r=4 lora.alpha=8"),
    ("gpt2", dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True),
     "lora.r=3 lora.alpha=5 lora.target_modules=c_attn,c_fc,c_proj"),
    ("llama", dict(r=4, lora_alpha=2, target_modules=["embed_tokens", "lm_head", "q_proj"], use_rslora=True, rank_pattern={"embed_tokens": 3},
                   alpha_pattern={"lm_head": 5}),
     "lora.r=4 lora.alpha=2 lora.target_modules=embed_tokens,lm_head,q_proj lora.use_rslora=true lora.rank_pattern=embed_tokens:3 lora.alpha_pattern=lm_head:5"),
    ("gpt2", dict(r=2, lora_alpha=1, target_modules=["wte", "wpe", "lm_head", "c_attn"], fan_in_fan_out=True),
     "lora.r=2 lora.alpha=1 lora.target_modules=wte,wpe,lm_head,c_attn"),
    ("gpt2", dict(r=2, lora_alpha=1, target_modules=["wpe", "c_fc"], init_lora_weights="gaussian", fan_in_fan_out=True),
     "lora.r=2 lora.alpha=1 lora.target_modules=wpe,c_fc lora.init=gaussian"),
    ("moe", dict(r=3, lora_alpha=6, target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"],
                 target_modules=["q_proj", "shared_expert_gate"], rank_pattern={"mlp.experts.down_proj": 2}),
     "lora.r=3 lora.alpha=6 lora.target_parameters=mlp.experts.gate_up_proj,mlp.experts.down_proj,mlp.gate.weight "
     "lora.target_modules=q_proj,shared_expert_gate lora.rank_pattern=mlp.experts.down_proj:2"),
    ("moe", dict(r=2, lora_alpha=1, target_parameters=["down_proj"], init_lora_weights="gaussian", use_rslora=True),
     "lora.r=2 lora.alpha=1 lora.target_parameters=down_proj lora.init=gaussian lora.use_rslora=true"),
    ("llama", dict(r=4, lora_alpha=6, target_modules="all-linear"),
     "lora.r=4 lora.alpha=6 lora.target_modules=all-linear lora.base_quantization=nf4"),
    ("gpt2", dict(r=4, lora_alpha=8), "lora.r=4 lora.alpha=8 lora.base_quantization=nf4"),
    ("llama", dict(r=4, lora_alpha=6, target_modules="all-linear", use_rslora=True, rank_pattern={"v_proj": 2, "layers.0.mlp.up_proj": 6},
                   alpha_pattern={"up_proj": 12, "layers.1.self_attn.v_proj": 3}),
     "lora.r=4 lora.alpha=6 lora.target_modules=all-linear lora.use_rslora=true lora.rank_pattern=v_proj:2,layers.0.mlp.up_proj:6 "
     "lora.alpha_pattern=up_proj:12,layers.1.self_attn.v_proj:3"),
    ("llama", dict(r=4, lora_alpha=6, target_modules="all-linear"), "lora.r=4 lora.alpha=6 lora.target_modules=all-linear lora.lr_ratio=4"),
    ("gpt2", dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, modules_to_save=["ln_f"]),
     "lora.r=3 lora.alpha=5 lora.target_modules=c_attn,c_fc lora.modules_to_save=ln_f lora.lr_ratio=2.5"),
    ("llama", dict(r=4, lora_alpha=6, use_dora=True), "lora.r=4 lora.alpha=6 lora.use_dora=true"),
    ("llama", dict(r=4, lora_alpha=6, target_modules="all-linear", use_dora=True, use_rslora=True, rank_pattern={"v_proj": 2}, alpha_pattern={"up_proj": 12}),
     "lora.r=4 lora.alpha=6 lora.target_modules=all-linear lora.use_dora=true lora.use_rslora=true lora.rank_pattern=v_proj:2 lora.alpha_pattern=up_proj:12"),
    ("gpt2", dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True, use_dora=True),
     "lora.r=3 lora.alpha=5 lora.target_modules=c_attn,c_fc,c_proj lora.use_dora=true"),
    ("llama", dict(r=4, lora_alpha=6, target_modules="all-linear", use_dora=True),
     "lora.r=4 lora.alpha=6 lora.target_modules=all-linear lora.use_dora=true lora.base_quantization=nf4 lora.lr_ratio=4"),
    ("moe", dict(r=3, lora_alpha=6, target_modules=["q_proj", "o_proj", "shared_expert_gate", "shared_expert.down_proj"], use_dora=True),
     "lora.r=3 lora.alpha=6 lora.target_modules=q_proj,o_proj,shared_expert_gate,shared_expert.down_proj lora.use_dora=true"),
    ("gpt2", dict(r=2, lora_alpha=2, target_modules=["c_fc"], fan_in_fan_out=True, modules_to_save=["lm_head"]),
     "lora.r=2 lora.alpha=2 lora.target_modules=c_fc lora.modules_to_save=lm_head"),
    ("gpt2", dict(r=2, lora_alpha=2, target_modules=["c_fc"], fan_in_fan_out=True, modules_to_save=["wte", "lm_head"]),
     "lora.r=2 lora.alpha=2 lora.target_modules=c_fc lora.modules_to_save=wte,lm_head"),
]
here = pathlib.Path(__file__).parent / "data"
out = here / "lora"


# ---- the numbers that dtrain draws (src/core/rng.c) ----
def start(name, shape, std):
    """An A of dtrain: uniform up to 1/sqrt(in), or normal with a standard deviation; the B of an embedding."""
    key, stream = mix64(mix64(SEED) ^ (3 << 32)), fnv(name.encode())
    values = []
    for block in range(-(-shape[0] * shape[1] // 4)):
        w = [x >> 8 for x in philox(key, stream, block)]
        if std:
            for i in (0, 2):
                radius, angle = math.sqrt(-2 * math.log((w[i] + 1) * 2**-24)) * std, 2 * math.pi * w[i + 1] * 2**-24
                values += [radius * math.cos(angle), radius * math.sin(angle)]
        else:
            values += [(2 * x * 2**-24 - 1) / math.sqrt(shape[1]) for x in w]
    return torch.tensor(values[:shape[0] * shape[1]]).view(shape)


def store_as_nf4(model):
    """The linear layers of blocks, in place, as the numbers that transformers has them as with BitsAndBytesConfig(load_in_4bit=True,
    bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True), which turns a Conv1D; the maxima as make_nf4_fixtures.py has them. Rows are of a block
    each: bitsandbytes' library for processors takes another block's maximum where rows are shorter than that."""
    for name, layer in model.named_modules():
        if not isinstance(layer, (torch.nn.Linear, Conv1D)) or name == "lm_head":
            continue
        weight = (layer.weight.T if isinstance(layer, Conv1D) else layer.weight).detach().contiguous()
        blocks = weight.view(-1, 64)
        codes, state = bnb.functional.quantize_4bit(blocks, quant_type="nf4", compress_statistics=True)
        maxima = quantise_maxima(blocks.abs().max(1)[0] - state.offset, state.state2.absmax)
        assert (maxima.int() - state.absmax.int()).abs().max() <= 1
        state.absmax = maxima
        weight = bnb.functional.dequantize_4bit(codes, state).view(weight.shape)
        layer.weight.data = weight.T if isinstance(layer, Conv1D) else weight


def adapted(path, settings, nf4):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **(dict(experts_implementation="eager") if path.name == "moe" else {}))
    if nf4:
        store_as_nf4(model)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".lora_A." not in name and ".lora_embedding_B." not in name:
                continue
            plain = name.removeprefix("base_model.model.").replace(".default", "")
            plain = plain.replace("experts.base_layer.", "experts.gate_up_proj.").replace("experts.lora", "experts.down_proj.lora")
            plain = plain.replace("mlp.gate.lora", "mlp.gate.weight.lora")
            gaussian = settings.get("init_lora_weights") == "gaussian"
            rank = settings["r"] if "experts" in plain else p.shape[0]
            p.copy_(start(plain, tuple(p.shape), 1 if "embedding" in name else gaussian / rank))
    return model


def plus(model, ratio):
    """LoRA+. PEFT also decays vectors, which dtrain never does."""
    optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=LR, loraplus_lr_ratio=ratio, loraplus_weight_decay=DECAY, eps=1e-8)
    for group in [g for g in optimizer.param_groups if any(p.ndim == 1 for p in g["params"])]:
        vectors = [p for p in group["params"] if p.ndim == 1]
        group["params"] = [p for p in group["params"] if p.ndim > 1]
        optimizer.add_param_group(dict(params=vectors, lr=group["lr"], weight_decay=0))
    return optimizer


def train(model, keys, samples):
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [dict(params=[p for p in trained if p.ndim > 1]), dict(params=[p for p in trained if p.ndim == 1], weight_decay=0)]
    ratio = [k for k in keys.split() if k.startswith("lora.lr_ratio=")]
    optimizer = (plus(model, float(ratio[0].split("=")[1])) if ratio
                 else torch.optim.AdamW([g for g in groups if g["params"]], lr=LR, weight_decay=DECAY, eps=1e-8))
    return train_on_answers(model, trained, optimizer, samples, STEPS, BATCH)


def main():
    torch.set_num_threads(1)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    torch.manual_seed(3)
    GPT2LMHeadModel(GPT2Config(vocab_size=258, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.2, bos_token_id=256, eos_token_id=256,
                               resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).save_pretrained(out / "gpt2")
    (out / "gpt2" / "generation_config.json").unlink()
    Qwen2MoeForCausalLM(Qwen2MoeConfig(vocab_size=258, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                                       max_position_embeddings=64, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12,
                                       shared_expert_intermediate_size=10, initializer_range=0.2, mlp_only_layers=[0], bos_token_id=256,
                                       eos_token_id=256)).save_pretrained(out / "moe")
    (out / "moe" / "generation_config.json").unlink()
    records = [json.loads(line) for line in open(here / "rm" / "pairs.jsonl")]
    samples = []
    with open(out / "sft.jsonl", "w") as f:
        for r in records:
            f.write(json.dumps(dict(prompt=r["prompt"], completion=r["chosen"])) + "\n")
            samples.append(([*r["prompt"].encode(), *r["chosen"].encode(), 256], len(r["prompt"].encode())))
    with open(out / "peft.txt", "w") as f:
        for name, settings, keys in RUNS:
            path = here / "dpo" / "start" if name == "llama" else out / name
            f.write(f"run {name} {keys}\n")
            f.writelines(train(adapted(path, settings, "nf4" in keys), keys, samples))


if __name__ == "__main__":
    main()

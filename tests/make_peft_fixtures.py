#!/usr/bin/env python3
"""make_peft_fixtures.py - tests/data/peft: adapters as PEFT writes them, and what transformers computes with them.

    python3 tests/make_peft_fixtures.py        (a development tool: needs torch, transformers, peft)

NAME/            a directory of PEFT, for the model that BASES names; what it adds is random
NAME/greedy.txt  a line a prompt: the prompt's ids | the ids that follow greedily | their log-probabilities
score/scores.txt a line a text: its ids | its score
"""
import pathlib
import shutil

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

here = pathlib.Path(__file__).parent / "data"
out = here / "peft"
BASES = dict(llama="dpo/start", gpt2="lora/gpt2", qwen2="hf/qwen2", score="rm/start", tables="dpo/start", tied="lora/gpt2", shared="hf/qwen2",
             grown="dpo/start", chosen="dpo/start", moe="lora/moe", dora="dpo/start", dora_gpt2="lora/gpt2",
             head="hf/qwen2", table="lora/gpt2", apart="lora/gpt2")
PROMPTS, NEW = [[5], [9, 33, 17, 2 + 40, 51], [11, 12, 13, 14, 15, 16, 17, 18, 19]], 6
CASES = dict(
    llama=(torch.float16, dict(r=4, lora_alpha=6, target_modules="all-linear", use_rslora=True, rank_pattern={"v_proj": 2, "layers.0.mlp.up_proj": 6},
                               alpha_pattern={"up_proj": 12}, modules_to_save=["lm_head"])),
    gpt2=(torch.float32, dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True, modules_to_save=["wte", "lm_head"])),
    qwen2=(torch.bfloat16, dict(r=2, lora_alpha=3, target_modules=r".*\.1\..*(q|k)_proj|model\.layers\.0\.mlp\.down_proj",
                                modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    tables=(torch.float16, dict(r=2, lora_alpha=3, target_modules=["embed_tokens", "lm_head", "q_proj"], use_rslora=True,
                                rank_pattern={"lm_head": 3}, alpha_pattern={"embed_tokens": 2})),
    tied=(torch.float16, dict(r=2, lora_alpha=1, target_modules=["wte", "wpe", "lm_head", "c_attn"], fan_in_fan_out=True)),
    shared=(torch.float16, dict(r=2, lora_alpha=1, target_modules=["embed_tokens", "down_proj"], ensure_weight_tying=True)),
    grown=(torch.float32, dict(r=2, lora_alpha=3, target_modules=["q_proj"], modules_to_save=["lm_head"])),
    chosen=(torch.float16, dict(r=2, lora_alpha=9, target_modules=["q_proj", "up_proj", "down_proj", "model.layers.0.self_attn.o_proj"],
                                layers_to_transform=[1], exclude_modules=["mlp.down_proj"])),
    moe=(torch.float16, dict(r=2, lora_alpha=3, target_modules=["q_proj", "up_proj"], 
                             target_parameters=["mlp.experts.gate_up_proj", "down_proj", "gate.weight"],
                             rank_pattern={"experts.down_proj": 3, "mlp.gate.weight": 1}, alpha_pattern={"gate_up_proj": 5})),
    dora=(torch.float16, dict(r=3, lora_alpha=5, target_modules="all-linear", use_dora=True, use_rslora=True, rank_pattern={"v_proj": 2},
                              alpha_pattern={"up_proj": 12})),
    dora_gpt2=(torch.float32, dict(r=2, lora_alpha=5, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, use_dora=True)),
    head=(torch.float16, dict(r=2, lora_alpha=3, target_modules=["q_proj"], modules_to_save=["lm_head"])),
    table=(torch.float16, dict(r=2, lora_alpha=1, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["wte"])),
    apart=(torch.float16, dict(r=2, lora_alpha=1, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["wte", "lm_head"])),
    score=(torch.float32, dict(r=2, lora_alpha=4, target_modules=["model.layers.0.self_attn.q_proj", "o_proj"])))


def adapted(name, dtype, settings):
    kind = AutoModelForSequenceClassification if name == "score" else AutoModelForCausalLM
    more = dict(num_labels=1) if name == "score" else {}
    base = kind.from_pretrained(here / BASES[name], dtype=torch.float32, **more)
    if name == "score":
        base.config.pad_token_id = 0
    torch.manual_seed(len(name))
    model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS" if name == "score" else "CAUSAL_LM", **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
                parameter.copy_(parameter.to(dtype))
        if name == "gpt2":  # the head stays the embedding's
            layers = model.base_model.model
            layers.lm_head.modules_to_save["default"].weight.copy_(layers.transformer.wte.modules_to_save["default"].weight)
    model.peft_config["default"].base_model_name_or_path = BASES[name]
    return model


def save(model, name, dtype):
    # True is what PEFT takes of itself for a vocabulary that has grown: the tables come along, trained or not, and the trained ones in three copies
    model.save_pretrained(out / name, save_embedding_layers=True if name == "grown" else "auto")
    (out / name / "README.md").unlink()
    tensors = out / name / "adapter_model.safetensors"
    save_file({k: v if ".base_layer." in k else v.to(dtype) for k, v in load_file(tensors).items()}, tensors, metadata={"format": "pt"})


def greedy(model, prompt):
    ids, logps = list(prompt), []
    for _ in range(NEW):
        logp = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1)
        ids.append(int(logp.argmax()))
        logps.append(logp.max().item())
    new = ids[len(prompt):]
    assert not {2, 256} & set(new), "it ends before"
    return f"{' '.join(map(str, prompt))} | {' '.join(map(str, new))} | {' '.join('%.7g' % x for x in logps)}\n"


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    shutil.rmtree(out, ignore_errors=True)
    for name, (dtype, settings) in CASES.items():
        model = adapted(name, dtype, settings)
        save(model, name, dtype)
        if name == "score":
            lines = [f"{' '.join(map(str, p))} | {model(torch.tensor([p])).logits.item():.7g}\n" for p in PROMPTS]
            (out / name / "scores.txt").write_text("".join(lines))
        else:
            (out / name / "greedy.txt").write_text("".join(greedy(model, p) for p in PROMPTS))


if __name__ == "__main__":
    main()

"""The tiny models of make_model_fixtures.py as Hugging Face directories, saved by transformers itself: what mpi_pretrained.c and others load.

    python tests/make_hf_fixtures.py tests/data/hf [NAME...]

needs torch, transformers and bitsandbytes. The weights are the formula's, so tests/data/model/NAME.json says what each computes; the directories in half precision carry
the loss of their rounded weights in expected.json, that with a scalar head its values.
"""
import json
import os
import shutil
import sys

import torch
import transformers
from bitsandbytes import functional
from safetensors.torch import load_file, save_file

import own_code_models
from make_model_fixtures import CASES, CLASSES, batch, build, digits, loss_of, weight


# the experts of a layer as one tensor, as in the published files of Qwen3.5
FUSED = dict(save_original_format=False)


def strip(path):
    """Removes transformers' version fields, which change with its version and which no test reads."""
    with open(os.path.join(path, "config.json")) as f:
        config = json.load(f)
    config.pop("transformers_version", None)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    generation = os.path.join(path, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)


def save(model, root, name, **options):
    path = os.path.join(root, name)
    shutil.rmtree(path, ignore_errors=True)
    model.save_pretrained(path, **options)
    strip(path)
    print(name)
    return path


def rounded(case, dtype):
    """A model whose weights went through dtype, in fp32, and its loss on the first batch."""
    model = build(CASES[case], dtype).float()
    loss, _ = loss_of(model, batch(dict(config=CASES[case], lens=[7, 12, 1, 5]), 0))
    return build(CASES[case], dtype), digits(float(loss))


def scored(case, n_labels):
    """A model with a scalar head, and what it makes of each token of the first batch."""
    cls = getattr(transformers, CLASSES[CASES[case]["model_type"]].replace("ForCausalLM", "ForSequenceClassification"))
    config = {k: v for k, v in CASES[case].items() if k != "model_type"}
    model = cls._from_config(cls.config_class(**config, num_labels=n_labels), attn_implementation="eager")
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weight(name, tuple(p.shape)))
        values = [model.score(model.model(input_ids=ids[None], use_cache=False).last_hidden_state)[0]
                  for ids, _ in batch(dict(config=CASES[case], lens=[7, 12, 1, 5]), 0)]
    return model, [[digits(float(x)) for x in row] for row in torch.cat(values)]


def write_expected(path, case, loss):
    with open(os.path.join(path, "expected.json"), "w") as f:
        json.dump(dict(case=case, loss=loss), f)
        f.write("\n")


QWEN_TOWER = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, out_hidden_size=20, patch_size=2, num_position_embeddings=4)
# cases whose text model is also saved inside of a model with a vision tower: name, class, tower
MULTIMODAL = {"qwen3_5": ("qwen3_5_vl", "Qwen3_5", QWEN_TOWER), "qwen3_5_moe": ("qwen3_5_moe_vl", "Qwen3_5Moe", QWEN_TOWER),
              "ministral3": ("mistral3", "Mistral3", dict(model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                                          num_attention_heads=2, head_dim=4, patch_size=2, image_size=8))}


def save_own_code(case, root):
    """As published, and as transformers' model of the same weights."""
    model, path = build(CASES[case], torch.float32), os.path.join(root, case)
    os.makedirs(path, exist_ok=True)
    buffers = {"transformer.rotary_pos_emb.inv_freq": torch.ones(3)} if case == "chatglm" else {}
    save_file({**{n: p.detach() for n, p in model.named_parameters()}, **buffers}, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    cls = type(model).__name__ + ("ForCausalLM" if case == "internlm2" else "Model")
    code = {"AutoModelForCausalLM": f"modeling_{case}.{cls}"}
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(dict(CASES[case], architectures=[cls], auto_map=code, torch_dtype="float32"), f, indent=2, sort_keys=True)
        f.write("\n")
    print(case)
    save(own_code_models.as_transformers(model, CASES[case]), root, case + "_as_" + ("llama" if case == "internlm2" else "glm"))


def save_multimodal(case, root):
    """With the tensors of multi-token prediction, which transformers drops."""
    name, cls, vision = MULTIMODAL[case]
    text = build(CASES[case], torch.float32)
    tied = text.config.tie_word_embeddings
    config = getattr(transformers, cls + "Config")(text_config=text.config.to_dict(), tie_word_embeddings=tied, vision_config=vision)
    model = getattr(transformers, cls + "ForConditionalGeneration")(config)
    own = dict(text.named_parameters())
    with torch.no_grad():
        for n, p in model.named_parameters():
            q = own.get(n.replace("model.language_model.", "model."))
            p.copy_(weight(n, tuple(p.shape)) if q is None else q)
    state = model.state_dict()
    if cls.startswith("Qwen"):
        save(model, root, name, state_dict={**state, "mtp.fc.weight": torch.zeros(3, 5)}, **FUSED)
        return
    path = os.path.join(save(model, root, name), "config.json")
    with open(path) as f:
        config = json.load(f)
    del config["tie_word_embeddings"]  # as in published files: the default is true, and the head differs
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def save_packed(state, path, root, name, quantization):
    """The same directory with other tensors, and what transformers makes of them in bf16."""
    save_file(state, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    config = os.path.join(path, "config.json")
    with open(config) as f:
        values = json.load(f)
    values["quantization_config"] = quantization
    with open(config, "w") as f:
        json.dump(values, f, indent=2, sort_keys=True)
        f.write("\n")
    save(transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto"), root, name + "_decoded")


def packed(case, root, name):
    """Experts in MXFP4 as in OpenAI's files, with drawn codes and scales."""
    config = dict(CASES[case], hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_experts_per_tok=2, vocab_size=257, tie_word_embeddings=True)
    model = build(config, torch.bfloat16)
    path, draw, state = save(model, root, name), torch.Generator().manual_seed(1), {}
    for key, p in model.named_parameters():
        state[key] = p.detach()
        if key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            shape = (p.shape[0], p.shape[2], p.shape[1] // 32)
            del state[key]
            state[key + "_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=draw)
            state[key + "_scales"] = torch.randint(115, 127, shape, dtype=torch.uint8, generator=draw)
    save_packed(state, path, root, name, dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]))


def fp8(case, root, name):
    """Matrices in FP8 with drawn codes and scales: of blocks, which end at the end of the matrix, of rows, and of a whole matrix."""
    config = dict(CASES[case], num_hidden_layers=1, mlp_only_layers=[], num_experts=3, num_experts_per_tok=2, moe_intermediate_size=256,
                  num_attention_heads=16, vocab_size=257, tie_word_embeddings=True)
    path, draw = save(build(config, torch.bfloat16), root, name), torch.Generator().manual_seed(1)
    state = load_file(os.path.join(path, "model.safetensors"))
    for key in [k for k in state if k.endswith("_proj.weight")]:
        n, m = state[key].shape
        codes = torch.randint(0, 254, (n, m), dtype=torch.uint8, generator=draw)
        state[key] = (codes + (codes >= 127)).view(torch.float8_e4m3fn)  # without NaN
        shape = {"k_proj": (), "v_proj": (n, 1)}.get(key.split(".")[-2], ((n + 127) // 128, (m + 127) // 128))
        scales = (torch.rand(shape, generator=draw) + 0.5) * 2.0**-10
        state[key + "_scale_inv"] = scales if "down_proj" in key else scales.to(torch.bfloat16)
    state["model.layers.0.self_attn.k_proj.activation_scale"] = torch.tensor(0.5)
    save_packed(state, path, root, name, dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128],
                                              modules_to_not_convert=["lm_head", "model.layers.0.mlp.gate"]))


# Rows have a multiple of 64 weights, or none of 16: for other rows bitsandbytes 0.50 takes wrong scales on processors with AVX-512.
NF4 = dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
BITSANDBYTES = {  # name: case, changes of its configuration, options of transformers
    "llama_nf4": ("llama", dict(hidden_size=128, intermediate_size=132, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                tie_word_embeddings=True), NF4),
    "phi3_nf4": ("phi3_partial", dict(hidden_size=64, num_attention_heads=8), dict(NF4, bnb_4bit_quant_storage="bfloat16")),
    "gpt2_nf4": ("gpt2", dict(n_embd=40, n_head=5, n_inner=100), NF4),
    "gpt2_fp4": ("gpt2", dict(n_inner=100), dict(load_in_4bit=True, bnb_4bit_quant_type="fp4")),
    "mistral_int8": ("mistral", {}, dict(load_in_8bit=True, llm_int8_skip_modules=["lm_head", "down_proj"])),
    "gpt2_int8": ("gpt2", {}, dict(load_in_8bit=True)),
}


def bitsandbytes(root, name):
    """The files that transformers writes of a model in 4 or 8 bits, and that model dequantised by bitsandbytes."""
    case, changes, options = BITSANDBYTES[name]
    config = dict(CASES[case], num_hidden_layers=1, n_layer=1, vocab_size=257, **changes)
    model = build(config, torch.bfloat16)
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(len(n))).to(p.dtype) / 64)  # the formula's maxima are few
    path = save(model, root, name)
    quantised = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, quantization_config=transformers.BitsAndBytesConfig(**options))
    save(quantised, root, name)
    state = {}
    for n, p in quantised.state_dict().items():
        weight = quantised.get_parameter(n) if n in dict(quantised.named_parameters()) else None
        module = quantised.get_submodule(n.rpartition(".")[0]) if weight is not None else None
        if type(weight).__name__ == "Params4bit":
            p = functional.dequantize_4bit(weight.data, weight.quant_state)
        elif type(weight).__name__ == "Int8Params":
            p = functional.int8_vectorwise_dequant(weight.data, weight.SCB).bfloat16()
        elif weight is None:
            continue
        state[n] = (p.T if getattr(module, "source_cls", None) is transformers.pytorch_utils.Conv1D else p).contiguous()
    decoded = build(config, torch.bfloat16)
    missing, unused = decoded.load_state_dict(state, strict=False)
    assert not unused and set(missing) <= {"lm_head.weight"}, (missing, unused)
    save(decoded, root, name + "_decoded")


def main():
    torch.set_num_threads(1)
    for name in sys.argv[2:] or BITSANDBYTES:
        if name in BITSANDBYTES:
            bitsandbytes(sys.argv[1], name)
    root = sys.argv[1]
    os.makedirs(root, exist_ok=True)
    for name in [n for n in sys.argv[2:] or CASES if n not in BITSANDBYTES]:
        if name in own_code_models.HF:
            save_own_code(name, root)
            continue
        save(build(CASES[name], torch.float32), root, name, **(FUSED if name == "qwen3_5_moe" else {}))
        if name in MULTIMODAL:
            save_multimodal(name, root)
        if name == "mixtral":
            save(build(CASES[name], torch.float32), root, "mixtral_fused", **FUSED)
        if name == "deepseek_v3_plain":  # with a layer of multi-token prediction, which transformers drops
            model = build(CASES[name], torch.float32)
            mtp = {f"model.layers.2.{part}.weight": torch.zeros(3, 2) for part in ("eh_proj", "enorm", "mlp.gate")}
            save(model, root, name, state_dict={**model.state_dict(), **mtp})
            model, loss = rounded(name, torch.bfloat16)
            write_expected(save(model, root, "deepseek_v3_bf16"), name, loss)
    if "gpt_oss" in (sys.argv[2:] or CASES):
        packed("gpt_oss_all", root, "gpt_oss_mxfp4")
    if "qwen3_moe" in (sys.argv[2:] or CASES):
        fp8("qwen3_moe", root, "qwen3_moe_fp8")
    if sys.argv[2:]:
        return
    save(build(CASES["llama"], torch.float32), root, "llama_sharded", max_shard_size="20KB")
    save(build(CASES["gpt2"], torch.float32).transformer, root, "gpt2_bare")
    for case, dtype, name in (("mistral", torch.bfloat16, "mistral_bf16"), ("qwen3", torch.float16, "qwen3_f16")):
        model, loss = rounded(case, dtype)
        write_expected(save(model, root, name), case, loss)
    model, values = scored("qwen2", 3)
    with open(os.path.join(save(model, root, "qwen2_score"), "expected.json"), "w") as f:
        json.dump(dict(case="qwen2", values=values), f)
        f.write("\n")
    with open(os.path.join(root, "qwen3_f16", "generation_config.json"), "w") as f:
        json.dump(dict(bos_token_id=1, eos_token_id=[2, 7], pad_token_id=0, do_sample=True, temperature=0.6, top_k=20, top_p=0.95,
                       repetition_penalty=1.05, transformers_version="4.51.0"), f, indent=2)
        f.write("\n")


if __name__ == "__main__":
    main()

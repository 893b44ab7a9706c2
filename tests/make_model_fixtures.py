"""Results of PyTorch and transformers for tiny models of each family: the expectations of test_model_reference.c.

    python tests/make_model_fixtures.py tests/data/model [NAME...]

needs torch and transformers; nothing else in the tree does. Weights and tokens are a formula that the test repeats (ref_model.c), so a file
holds a configuration and results only:
  logits     of the first batch, one list per token; of a model whose rotary embedding depends on the length, each of the text that ends there
  loss       mean over all tokens of the first batch
  grad_norm, grad_dot   per tensor: the norm of its gradient, and its product with the formula's numbers for "dot." + name
  losses     of 20 steps of AdamW with decay groups and clipping, on two batches in turn
  bf16_*     the same in bf16 with fp32 master weights, where rounding differs from ours
"""
import json
import math
import os
import sys

import numpy as np
import own_code_models
import torch
import transformers
from fixtures import fnv, mix64
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

STEPS, LR, DECAY, CLIP = 20, 3e-3, 0.1, 1.0

RMS = dict(hidden_size=20, intermediate_size=28, num_hidden_layers=2, vocab_size=61, max_position_embeddings=64, rms_norm_eps=1e-5,
           bos_token_id=1, eos_token_id=2)
GPT2 = dict(model_type="gpt2", n_embd=24, n_layer=2, n_head=3, vocab_size=61, n_positions=32, attn_pdrop=0.0, embd_pdrop=0.0,
            resid_pdrop=0.0, bos_token_id=1, eos_token_id=2)
# as gemma2: with 1e-2, in bf16 PyTorch's losses differ from those in fp32 by 6 %, with 1 by 0.02 %
QWEN35 = dict(dict(RMS, rms_norm_eps=1.0, max_position_embeddings=128), model_type="qwen3_5_text", num_attention_heads=3, num_key_value_heads=1,
              head_dim=8, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=5, linear_value_head_dim=7,
              rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))
LENS = dict(qwen3_5_long=[70, 3, 66])
CASES = {
    "gpt2": dict(GPT2),
    "gpt2_variant": dict(GPT2, n_inner=40, activation_function="gelu", scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False),
    "llama": dict(RMS, model_type="llama", num_attention_heads=10, num_key_value_heads=5, head_dim=6, attention_bias=True, mlp_bias=True,
                  rope_theta=500000.0, tie_word_embeddings=False,
                  rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                    original_max_position_embeddings=24)),
    "llama_linear": dict(RMS, model_type="llama", num_attention_heads=5, rope_theta=10000.0, tie_word_embeddings=True,
                         rope_scaling=dict(type="linear", factor=2.0)),
    "llama_dynamic": dict(RMS, model_type="llama", num_attention_heads=5, max_position_embeddings=8,
                          rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)),
    "mistral": dict(RMS, model_type="mistral", num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=5,
                    rope_theta=10000.0),
    "qwen2": dict(RMS, model_type="qwen2", num_attention_heads=10, num_key_value_heads=2, use_sliding_window=True, sliding_window=4,
                  max_window_layers=1, tie_word_embeddings=True, rope_theta=1000000.0),
    "qwen3": dict(RMS, model_type="qwen3", num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=10000.0,
                  tie_word_embeddings=True,
                  rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    # norms of small outputs amplify roundings: with 1e-5 PyTorch's own losses in fp32 and fp64 differ by 7e-6 after 20 steps, with 1e-2 by 1e-7
    "olmo2": dict(dict(RMS, rms_norm_eps=1e-2), model_type="olmo2", num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=10000.0),
    "olmo3": dict(dict(RMS, rms_norm_eps=1.0, num_hidden_layers=3), model_type="olmo3", num_attention_heads=10, num_key_value_heads=5, head_dim=6,
                  sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"], attention_bias=True,
                  rope_theta=10000.0, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=1.2)),
    "seed_oss": dict(RMS, model_type="seed_oss", num_attention_heads=6, num_key_value_heads=3, head_dim=10, attention_out_bias=True, mlp_bias=True,
                     rope_theta=10000.0, attention_dropout=0.0, residual_dropout=0.0),
    "internlm3": dict(RMS, model_type="internlm3", num_attention_heads=10, num_key_value_heads=2, head_dim=6, attention_bias=True, mlp_bias=True,
                      rope_theta=10000.0, tie_word_embeddings=True),
    # queries of four lengths of the original context
    "ministral3": dict(RMS, model_type="ministral3", num_attention_heads=6, num_key_value_heads=3, head_dim=8, sliding_window=9,
                       rope_parameters=dict(rope_type="yarn", factor=16.0, rope_theta=10000.0, original_max_position_embeddings=4,
                                            mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5)),
    # three sequences get the short divisors, one the long ones
    "phi3": dict(RMS, model_type="phi3", num_attention_heads=5, num_key_value_heads=5, sliding_window=6, rope_theta=10000.0, pad_token_id=None,
                 original_max_position_embeddings=8, rope_scaling=dict(type="longrope", short_factor=[1.0, 1.25], long_factor=[1.5, 3.0])),
    "phi3_partial": dict(RMS, model_type="phi3", num_attention_heads=6, num_key_value_heads=2, head_dim=8, partial_rotary_factor=0.75,
                         tie_word_embeddings=True, rope_theta=10000.0, pad_token_id=0, resid_pdrop=0.0),
    "glm": dict(RMS, model_type="glm", num_attention_heads=6, num_key_value_heads=3, head_dim=12, rope_theta=10000.0, pad_token_id=0),
    "glm4": dict(dict(RMS, rms_norm_eps=1.0), model_type="glm4", num_attention_heads=6, num_key_value_heads=2, head_dim=10, rope_theta=10000.0,
                 rope_parameters=dict(rope_type="default", partial_rotary_factor=0.4), attention_bias=False, tie_word_embeddings=True, pad_token_id=0),
    "internlm2": dict(RMS, model_type="internlm2", hidden_size=24, num_attention_heads=6, num_key_value_heads=2, bias=True, rope_theta=1000000.0,
                      rope_scaling=dict(type="linear", factor=2.0), pad_token_id=2, tie_word_embeddings=False),
    "chatglm": dict(model_type="chatglm", num_layers=2, padded_vocab_size=61, vocab_size=61, hidden_size=20, ffn_hidden_size=28, kv_channels=12,
                    num_attention_heads=6, multi_query_attention=True, multi_query_group_num=2, seq_length=64, layernorm_epsilon=1e-5, add_qkv_bias=True,
                    rope_ratio=2.5, rmsnorm=True, original_rope=True, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "granite": dict(RMS, model_type="granite", num_attention_heads=5, rope_theta=10000.0, tie_word_embeddings=True, attention_bias=True,
                    embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.4, logits_scaling=1.5),
    "smollm3": dict(RMS, model_type="smollm3", num_attention_heads=10, num_key_value_heads=2, rope_theta=10000.0, no_rope_layer_interval=2,
                    use_sliding_window=True, sliding_window=5, pad_token_id=None),
    # the same for four norms a block: in bf16 PyTorch's losses differ from those in fp32 by 2 to 5 % with 1e-5, by less than 0.5 % with 1
    "gemma2": dict(dict(RMS, rms_norm_eps=1.0), model_type="gemma2", num_attention_heads=4, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=5, sliding_window=5,
                   attn_logit_softcapping=2.0, final_logit_softcapping=3.0, hidden_activation="gelu_pytorch_tanh", pad_token_id=0),
    "gemma3_text": dict(dict(RMS, rms_norm_eps=1.0, num_hidden_layers=3), model_type="gemma3_text", num_attention_heads=4, num_key_value_heads=1, head_dim=8,
                        query_pre_attn_scalar=100, sliding_window=5, sliding_window_pattern=2, rope_theta=1000000.0, rope_local_base_freq=500.0,
                        rope_scaling=dict(rope_type="linear", factor=8.0), hidden_activation="gelu_pytorch_tanh", pad_token_id=0),
    # a layer without experts; the shared expert is wider than an expert and narrower than the MLP
    "qwen2_moe": dict(RMS, model_type="qwen2_moe", num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=5, rope_theta=10000.0,
                      num_experts=6, num_experts_per_tok=2, moe_intermediate_size=9, shared_expert_intermediate_size=14, mlp_only_layers=[1],
                      use_sliding_window=True, sliding_window=5, max_window_layers=2),
    "qwen3_moe": dict(RMS, model_type="qwen3_moe", num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=10000.0,
                      num_experts=7, num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=True, mlp_only_layers=[1], attention_bias=True),
    # more experts than assignments: some have no rows
    "qwen3_moe_many": dict(RMS, model_type="qwen3_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=10000.0, num_experts=33,
                           num_experts_per_tok=1, moe_intermediate_size=9, norm_topk_prob=False, decoder_sparse_step=2, tie_word_embeddings=True,
                           use_sliding_window=True, sliding_window=5),
    # the load-balancing loss is that of all tokens of the batch, in all layers
    "qwen3_moe_balanced": dict(RMS, model_type="qwen3_moe", num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                               rope_theta=10000.0, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True,
                               mlp_only_layers=[0], output_router_logits=True, router_aux_loss_coef=0.25),
    "mixtral": dict(RMS, model_type="mixtral", num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=10000.0, num_local_experts=5,
                    num_experts_per_tok=2, sliding_window=5),
    # every token uses every expert
    "mixtral_all": dict(RMS, model_type="mixtral", num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=10000.0, num_local_experts=3,
                        num_experts_per_tok=3),
    # clamped gates and ups; more positions than the original context
    "gpt_oss": dict(RMS, model_type="gpt_oss", num_attention_heads=6, num_key_value_heads=2, head_dim=10, num_local_experts=5,
                    num_experts_per_tok=2, sliding_window=5, swiglu_limit=0.3, tie_word_embeddings=True,
                    rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, original_max_position_embeddings=16, truncate=False)),
    # defaults, every token uses every expert, the load-balancing loss and the z-loss
    "gpt_oss_all": dict(RMS, model_type="gpt_oss", num_attention_heads=4, num_key_value_heads=4, head_dim=6, num_local_experts=3,
                        num_experts_per_tok=3, attention_bias=False, output_router_logits=True, router_aux_loss_coef=0.25,
                        router_z_loss_coef=0.125),
    "qwen3_5": dict(QWEN35, num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"]),
    # texts above and below a chunk of 64 tokens; as many key heads as value heads
    "qwen3_5_long": dict(QWEN35, num_hidden_layers=2, layer_types=["full_attention", "linear_attention"], linear_num_key_heads=3,
                         linear_num_value_heads=3, linear_key_head_dim=17, linear_value_head_dim=6, tie_word_embeddings=True),
    "qwen3_5_moe": dict(QWEN35, model_type="qwen3_5_moe_text", num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
                        num_experts=7, num_experts_per_tok=3, moe_intermediate_size=10, shared_expert_intermediate_size=14),
    "deepseek_v3": dict(RMS, model_type="deepseek_v3", num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=9, kv_lora_rank=7,
                        qk_nope_head_dim=5, qk_rope_head_dim=4, v_head_dim=6, first_k_dense_replace=1, n_routed_experts=12, num_experts_per_tok=3,
                        n_group=4, topk_group=2, moe_intermediate_size=10, n_shared_experts=2, routed_scaling_factor=1.7, attention_bias=True,
                        rope_parameters=dict(rope_type="yarn", factor=4.0, rope_theta=10000.0, original_max_position_embeddings=16, beta_fast=32.0,
                                             beta_slow=1.0, mscale=0.7, mscale_all_dim=1.1)),
    # as Moonlight: queries are not compressed, one group of experts; values are wider than keys
    "deepseek_v3_plain": dict(RMS, model_type="deepseek_v3", num_attention_heads=2, num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=11,
                              qk_nope_head_dim=4, qk_rope_head_dim=6, v_head_dim=13, first_k_dense_replace=0, n_routed_experts=7, num_experts_per_tok=2,
                              n_group=1, topk_group=1, moe_intermediate_size=9, n_shared_experts=1, norm_topk_prob=False, routed_scaling_factor=0.8,
                              rope_interleave=False, rope_theta=50000.0, tie_word_embeddings=True),
    "deepseek_v2": dict(RMS, model_type="deepseek_v2", num_attention_heads=4, num_key_value_heads=4, q_lora_rank=8, kv_lora_rank=6, qk_nope_head_dim=6,
                        qk_rope_head_dim=2, v_head_dim=5, first_k_dense_replace=1, n_routed_experts=9, num_experts_per_tok=3,
                        topk_method="group_limited_greedy", n_group=3, topk_group=2, moe_intermediate_size=11, n_shared_experts=1,
                        routed_scaling_factor=3.0, rope_theta=10000.0),
    "glm4_moe": dict(RMS, model_type="glm4_moe", num_attention_heads=6, num_key_value_heads=2, head_dim=12, attention_bias=True, use_qk_norm=True,
                     first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=9,
                     n_shared_experts=1, routed_scaling_factor=1.3, rope_theta=10000.0, router_z_loss_coef=0.25),
    # three value heads for each of two key heads, whose rows are grouped; the layer in the middle has no experts
    "qwen3_next": dict(QWEN35, model_type="qwen3_next", num_hidden_layers=3, layer_types=["linear_attention", "linear_attention", "full_attention"],
                       num_experts=7, num_experts_per_tok=3, moe_intermediate_size=9, shared_expert_intermediate_size=14, mlp_only_layers=[1]),
}
CLASSES = dict(gpt2="GPT2LMHeadModel", llama="LlamaForCausalLM", mistral="MistralForCausalLM", qwen2="Qwen2ForCausalLM",
               qwen3="Qwen3ForCausalLM", olmo2="Olmo2ForCausalLM", olmo3="Olmo3ForCausalLM", seed_oss="SeedOssForCausalLM", internlm3="LlamaForCausalLM",
               ministral3="Ministral3ForCausalLM", phi3="Phi3ForCausalLM", glm="GlmForCausalLM", glm4="Glm4ForCausalLM",
               granite="GraniteForCausalLM", smollm3="SmolLM3ForCausalLM",
               gemma2="Gemma2ForCausalLM", gemma3_text="Gemma3ForCausalLM", qwen2_moe="Qwen2MoeForCausalLM", qwen3_moe="Qwen3MoeForCausalLM", mixtral="MixtralForCausalLM", gpt_oss="GptOssForCausalLM", qwen3_5_text="Qwen3_5ForCausalLM",
               qwen3_5_moe_text="Qwen3_5MoeForCausalLM", qwen3_next="Qwen3NextForCausalLM",
               deepseek_v2="DeepseekV2ForCausalLM", deepseek_v3="DeepseekV3ForCausalLM", glm4_moe="Glm4MoeForCausalLM")


def numbers(name, n):
    """n numbers in [-1/2, 1/2) that belong to a name: FNV-1a of the name, counted up, mixed."""
    with np.errstate(over="ignore"):
        x = mix64(np.uint64(fnv(name.encode())) + np.arange(n, dtype=np.uint64))
    return (x >> np.uint64(40)).astype(np.float64) * 2.0**-24 - 0.5


def weight(name, shape):
    u = numbers(name, math.prod(shape)).reshape(shape)
    is_norm = len(shape) == 1 and name.endswith("weight")
    return torch.tensor((1 if is_norm else 0) + 0.5 * u, dtype=torch.float32)


def stored(name, tensor, config):
    """(name, part) for each tensor in files of a parameter: transformers fuses the experts of a layer in memory."""
    if config["model_type"] in own_code_models.HF:
        return own_code_models.parts(name, tensor, config)
    if config["model_type"] == "mixtral":
        name = name.replace(".mlp.", ".block_sparse_moe.")
    words = ("w1", "w3", "w2") if config["model_type"] == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    base, _, last = name.rpartition(".")
    if not base.endswith(".experts"):
        return [(name, tensor)]
    parts = []
    for e in range(tensor.shape[0]):
        if config["model_type"] == "qwen3_vl_moe":  # files have the transpose
            parts.append((f"{base}.{e}.{last}.weight", tensor[e].T))
        elif config["model_type"] == "gpt_oss":
            parts.append((f"{base}.{e}.{last.removesuffix('_bias')}.{'bias' if last.endswith('_bias') else 'weight'}", tensor[e]))
        elif last == "gate_up_proj":
            half = tensor.shape[1] // 2
            parts.append((f"{base}.{e}.{words[0]}.weight", tensor[e, :half]))
            parts.append((f"{base}.{e}.{words[1]}.weight", tensor[e, half:]))
        else:
            parts.append((f"{base}.{e}.{words[2]}.weight", tensor[e]))
    return parts


def fill(model, config, name_of=str):
    with torch.no_grad():
        for name, p in model.named_parameters():
            for part, q in stored(name_of(name), p, config):
                q.copy_(weight(part, tuple(q.shape)))
    return model


def tokens(k, s, n, n_ids):
    """The n tokens of sequence s of batch k, which are below n_ids."""
    with np.errstate(over="ignore"):
        ids = mix64(np.uint64(1000003 * k + 1009 * s) + np.arange(n, dtype=np.uint64)) % np.uint64(n_ids)
    return torch.tensor(ids.astype(np.int64))


def batch(case, k):
    """(inputs, targets) per sequence of batch k."""
    ids = [tokens(k, s, n + 1, case["config"]["vocab_size"]) for s, n in enumerate(case["lens"])]
    return [(x[:-1], x[1:]) for x in ids]


def build(config, dtype):
    config = dict(config)
    own = config["model_type"] in own_code_models.HF
    cls = None if own else getattr(transformers, CLASSES[config["model_type"]])
    experts = dict(experts_implementation="eager") if "num_experts_per_tok" in config else {}
    model = own_code_models.make(config) if own else cls._from_config(transformers.AutoConfig.for_model(**config), attn_implementation="eager", **experts)
    fill(model, config).to(dtype)
    for name, m in model.named_modules():
        if hasattr(m, "e_score_correction_bias"):  # fp32 in every model
            m.e_score_correction_bias = weight(name + ".e_score_correction_bias", tuple(m.e_score_correction_bias.shape))
    return model.train()


def forget_length(model):
    """The dynamic rule remembers the longest sequence it has seen: each is to be turned as if it were the first."""
    if "dynamic" in str(getattr(model.config, "rope_parameters", None)):
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)


def prefix_logits(model, data):
    rows = []
    for inputs, _ in data:
        for n in range(1, len(inputs) + 1):
            forget_length(model)
            rows.append(model(input_ids=inputs[None, :n], use_cache=False).logits[0, -1].float())
    return torch.stack(rows)


def z_loss(model, logits):
    """The mean over the tokens of logsumexp^2 of the router's logits, summed over the layers."""
    return getattr(model.config, "router_z_loss_coef", 0) * sum(torch.logsumexp(torch.cat(z), -1).square().mean() for z in logits.values())


def watch_routers(model):
    """The logits of each router, one tensor for each call. Families return them in different forms, or not at all."""
    logits, hooks = {}, []
    for name, m in model.named_modules():
        if name.endswith((".mlp.gate", ".mlp.router")) and getattr(model.config, "router_z_loss_coef", 0):
            see = lambda m, args, name=name: logits.setdefault(name, []).append(
                torch.nn.functional.linear(args[0].flatten(0, -2), m.weight, getattr(m, "bias", None)).float())
            hooks.append(m.register_forward_pre_hook(see))
    return logits, hooks


def loss_of(model, data):
    total, count, logits, routers = 0.0, 0, [], []
    z_logits, hooks = watch_routers(model)
    for inputs, targets in data:
        forget_length(model)
        out = model(input_ids=inputs[None], use_cache=False)
        z = out.logits[0].float()
        routers.append(getattr(out, "router_logits", None))
        total = total + torch.nn.functional.cross_entropy(z, targets, reduction="sum")
        count += len(targets)
        logits.append(z)
    for hook in hooks:
        hook.remove()
    loss = total / count + z_loss(model, z_logits)
    if routers[0]:
        layers = tuple(torch.cat(layer) for layer in zip(*routers))
        loss = loss + model.config.router_aux_loss_coef * load_balancing_loss_func(layers, model.config.num_experts, model.config.num_experts_per_tok)
    return loss, torch.cat(logits)


def groups(params):
    """As transformers' Trainer: norms and biases do not decay, class embeddings, layer scales, A_log and sinks do."""
    does = lambda n, p: (p.dim() > 1 and not n.endswith("_bias")) or n.endswith(("class_embedding", "A_log", "sinks", "lambda_1", "lambda_2"))
    decays = [p for n, p in params if does(n, p)]
    others = [p for n, p in params if not does(n, p)]
    return [dict(params=decays, weight_decay=DECAY), dict(params=others, weight_decay=0.0)]


def train(case, dtype):
    model = build(case["config"], dtype)
    names = [n for n, _ in model.named_parameters()]
    params = [p for _, p in model.named_parameters()]
    master = [torch.nn.Parameter(p.detach().float().clone()) for p in params]
    opt = torch.optim.AdamW(groups(list(zip(names, master))), lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(STEPS):
        model.zero_grad()
        loss, _ = loss_of(model, batch(case, step % 2))
        loss.backward()
        for a, p in zip(master, params):
            a.grad = p.grad.float()
        torch.nn.utils.clip_grad_norm_(master, CLIP)
        opt.step()
        with torch.no_grad():
            for a, p in zip(master, params):
                p.copy_(a)
        losses.append(float(loss))
    return losses


def digits(x):
    """A number, or a list of them, as a file has it."""
    return [digits(v) for v in x] if isinstance(x, list) else float("%.9g" % x)


def gradients(model, config, name_of=str):
    """A norm and a product for each tensor in files; name_of makes its name from that of a parameter."""
    norms, dots = {}, {}
    for n, p in model.named_parameters():
        for part, q in stored(name_of(n), p.grad, config) if p.grad is not None else []:
            g = q.double().numpy().ravel()
            norms[part] = digits(np.sqrt((g * g).sum()))
            dots[part] = digits((g * numbers("dot." + part, g.size)).sum())
    return dict(grad_norm=norms, grad_dot=dots)


def make(name, config):
    dynamic = name == "llama_dynamic"
    lens = LENS.get(name, [11, 8, 1, 12] if dynamic else [7, 12, 1, 5])
    case = dict(name=name, config=config, lens=lens, lr=LR, weight_decay=DECAY, clip=CLIP)
    model = build(config, torch.float32)
    loss, logits = loss_of(model, batch(case, 0))
    loss.backward()
    if dynamic or name == "phi3":
        logits = prefix_logits(model, batch(case, 0))
    case["logits"] = digits(logits.detach().tolist())
    case["loss"] = digits(float(loss))
    case.update(gradients(model, config))
    case["losses"] = digits(train(case, torch.float32))
    case["bf16_losses"] = digits(train(case, torch.bfloat16))
    return case


def write_cases(make, names):
    """make(name) of each case into a file of the directory that the command line names; the names after it choose cases."""
    torch.set_num_threads(1)
    os.makedirs(sys.argv[1], exist_ok=True)
    for name in sys.argv[2:] or names:
        with open(os.path.join(sys.argv[1], name + ".json"), "w") as f:
            json.dump(make(name), f, separators=(",", ":"))
            f.write("\n")
        print(name)


if __name__ == "__main__":
    write_cases(lambda name: make(name, CASES[name]), CASES)

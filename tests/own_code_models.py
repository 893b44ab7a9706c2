"""Models whose published directories have their own code (auto_map), which transformers lacks: InternLM2 and ChatGLM3/GLM-4, in plain PyTorch, after the
published modeling_internlm2.py and modeling_chatglm.py (with GLM-4's rope_ratio). The fixtures of make_model_fixtures.py come from these definitions.

    python tests/own_code_models.py

compares them with LlamaForCausalLM and GlmForCausalLM, which have the same weights under other names.
"""
import copy
import math
import types

import torch
import transformers
from torch import nn
from torch.nn import functional as F

HF = dict(internlm2="LlamaForCausalLM", chatglm="GlmForCausalLM")


class Norm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def attend(q, k, v):
    """Causal attention of [batch, heads, length, head_dim], whose queries share keys and values in groups."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    s = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return (torch.softmax(s, dim=-1, dtype=torch.float32).to(q.dtype) @ v).transpose(1, 2).flatten(2)


class InternAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.d, self.per = c, c.hidden_size // c.num_attention_heads, c.num_attention_heads // c.num_key_value_heads
        self.wqkv = nn.Linear(c.hidden_size, (c.num_attention_heads + 2 * c.num_key_value_heads) * self.d, bias=c.bias)
        self.wo = nn.Linear(c.hidden_size, c.hidden_size, bias=c.bias)

    def angles(self, n):
        base, t, rule = self.c.rope_theta, torch.arange(n).float(), self.c.rope_scaling or {}
        if rule.get("type") == "linear":
            t = t / rule["factor"]
        if rule.get("type") == "dynamic" and n > self.c.max_position_embeddings:
            base *= (rule["factor"] * n / self.c.max_position_embeddings - (rule["factor"] - 1)) ** (self.d / (self.d - 2))
        a = torch.outer(t, 1 / base ** (torch.arange(0, self.d, 2).float() / self.d))
        return torch.cat((a, a), -1)

    def forward(self, x):
        b, n, _ = x.shape
        y = self.wqkv(x).view(b, n, -1, self.per + 2, self.d)  # each group: its queries, a key, a value
        q, k, v = y[..., :-2, :].flatten(2, 3).transpose(1, 2), y[..., -2, :].transpose(1, 2), y[..., -1, :].transpose(1, 2)
        a = self.angles(n)
        turn = lambda z: z * a.cos().to(z.dtype) + torch.cat((-z[..., self.d // 2:], z[..., :self.d // 2]), -1) * a.sin().to(z.dtype)
        return self.wo(attend(turn(q), turn(k), v))


class InternMlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(c.hidden_size, c.intermediate_size, bias=False) for _ in range(2))
        self.w2 = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class InternBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention, self.feed_forward = InternAttention(c), InternMlp(c)
        self.attention_norm, self.ffn_norm = (Norm(c.hidden_size, c.rms_norm_eps) for _ in range(2))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class InternLM2(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = nn.Module()
        self.model.tok_embeddings = nn.Embedding(c.vocab_size, c.hidden_size, padding_idx=c.pad_token_id)
        self.model.layers = nn.ModuleList(InternBlock(c) for _ in range(c.num_hidden_layers))
        self.model.norm = Norm(c.hidden_size, c.rms_norm_eps)
        self.output = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def logits(self, ids):
        x = self.model.tok_embeddings(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.output(self.model.norm(x))


class GlmAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        q, kv = (n * c.kv_channels for n in (c.num_attention_heads, c.multi_query_group_num))
        self.query_key_value = nn.Linear(c.hidden_size, q + 2 * kv, bias=c.add_qkv_bias)
        self.dense = nn.Linear(q, c.hidden_size, bias=False)

    def turn(self, x):
        """Rotates neighbours in the first half of each head."""
        r = self.c.kv_channels // 2
        a = torch.outer(torch.arange(x.shape[2]).float(), 1 / (10000 * self.c.rope_ratio) ** (torch.arange(0, r, 2).float() / r))
        cos, sin, y = a.cos().to(x.dtype), a.sin().to(x.dtype), x[..., :r].unflatten(-1, (-1, 2))
        turned = torch.stack((y[..., 0] * cos - y[..., 1] * sin, y[..., 1] * cos + y[..., 0] * sin), -1).flatten(-2)
        return torch.cat((turned, x[..., r:]), -1)

    def forward(self, x):
        n = [k * self.c.kv_channels for k in (self.c.num_attention_heads, *2 * [self.c.multi_query_group_num])]
        q, k, v = (y.unflatten(-1, (-1, self.c.kv_channels)).transpose(1, 2) for y in self.query_key_value(x).split(n, -1))
        return self.dense(attend(self.turn(q), self.turn(k), v))


class GlmMlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dense_h_to_4h = nn.Linear(c.hidden_size, 2 * c.ffn_hidden_size, bias=False)
        self.dense_4h_to_h = nn.Linear(c.ffn_hidden_size, c.hidden_size, bias=False)

    def forward(self, x):
        gate, up = self.dense_h_to_4h(x).chunk(2, -1)
        return self.dense_4h_to_h(F.silu(gate) * up)


class GlmBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (Norm(c.hidden_size, c.layernorm_epsilon) for _ in range(2))
        self.self_attention, self.mlp = GlmAttention(c), GlmMlp(c)

    def forward(self, x):
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class ChatGLM(nn.Module):
    """The published embedding has no padding row; GlmForCausalLM's, whose form dtrain trains and exports, has one."""

    def __init__(self, c):
        super().__init__()
        self.transformer = t = nn.Module()
        t.embedding, t.encoder = nn.Module(), nn.Module()
        t.embedding.word_embeddings = nn.Embedding(c.padded_vocab_size, c.hidden_size, padding_idx=c.pad_token_id)
        t.encoder.layers = nn.ModuleList(GlmBlock(c) for _ in range(c.num_layers))
        t.encoder.final_layernorm = Norm(c.hidden_size, c.layernorm_epsilon)
        t.output_layer = nn.Linear(c.hidden_size, c.padded_vocab_size, bias=False)

    def logits(self, ids):
        x = self.transformer.embedding.word_embeddings(ids)
        for layer in self.transformer.encoder.layers:
            x = layer(x)
        return self.transformer.output_layer(self.transformer.encoder.final_layernorm(x))


def make(config):
    """A model with the interface that make_model_fixtures.py uses."""
    c = types.SimpleNamespace(**{"rope_scaling": None, "rope_ratio": 1, **config})
    model = dict(internlm2=InternLM2, chatglm=ChatGLM)[config["model_type"]](c)
    model.config = c
    model.forward = lambda input_ids, use_cache=False: types.SimpleNamespace(logits=model.logits(input_ids))
    return model


NAMES = dict(internlm2=[("model.tok_embeddings", "model.embed_tokens"), ("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"),
                        ("attention.wo", "self_attn.o_proj"), ("feed_forward.w1", "mlp.gate_proj"), ("feed_forward.w3", "mlp.up_proj"),
                        ("feed_forward.w2", "mlp.down_proj"), ("output.", "lm_head.")],
             chatglm=[("transformer.embedding.word_embeddings", "model.embed_tokens"), ("transformer.encoder.layers", "model.layers"),
                      ("transformer.encoder.final_layernorm", "model.norm"), ("transformer.output_layer", "lm_head"),
                      ("self_attention.dense", "self_attn.o_proj"), ("dense_h_to_4h", "gate_up_proj"), ("dense_4h_to_h", "down_proj")])


def parts(name, tensor, config):
    """(name, part) for each tensor of transformers' model of a parameter. The parts are views, of more dimensions if rows are apart."""
    hf = name
    for ours, theirs in NAMES[config["model_type"]]:
        hf = hf.replace(ours, theirs)
    q_proj, k_proj, v_proj = (hf.replace("attention.wqkv", f"self_attn.{x}_proj").replace("self_attention.query_key_value", f"self_attn.{x}_proj") for x in "qkv")
    if "wqkv" in name:
        per, n = config["num_attention_heads"] // config["num_key_value_heads"], config["num_key_value_heads"]
        groups = tensor.view(n, per + 2, -1, *tensor.shape[1:])
        return [(q_proj, groups[:, :-2]), (k_proj, groups[:, -2]), (v_proj, groups[:, -1])]
    if "query_key_value" in name:
        n = [k * config["kv_channels"] for k in (config["num_attention_heads"], *2 * [config["multi_query_group_num"]])]
        return list(zip((q_proj, k_proj, v_proj), tensor.split(n)))
    return [(hf, tensor)]


def hf_config(c):
    if c["model_type"] == "internlm2":
        return dict({k: v for k, v in c.items() if k not in ("model_type", "bias")}, attention_bias=c["bias"])
    return dict(hidden_size=c["hidden_size"], intermediate_size=c["ffn_hidden_size"], num_hidden_layers=c["num_layers"], head_dim=c["kv_channels"],
                num_attention_heads=c["num_attention_heads"], num_key_value_heads=c["multi_query_group_num"], vocab_size=c["padded_vocab_size"],
                max_position_embeddings=c["seq_length"], rms_norm_eps=c["layernorm_epsilon"], attention_bias=c["add_qkv_bias"],
                rope_theta=10000.0 * c["rope_ratio"], pad_token_id=c["pad_token_id"], bos_token_id=c["bos_token_id"], eos_token_id=c["eos_token_id"])


def as_transformers(model, config):
    """transformers' model with the same weights."""
    cls = getattr(transformers, HF[config["model_type"]])
    config = copy.deepcopy(config)
    to = cls._from_config(cls.config_class(**hf_config(config)), attn_implementation="eager")
    state = {n: q for name, p in model.named_parameters() for n, q in parts(name, p.detach(), config)}
    with torch.no_grad():
        for name, p in to.named_parameters():
            p.copy_(state.pop(name).reshape(p.shape))
    assert not state, state.keys()
    return to


def main():
    from make_model_fixtures import CASES, build
    for name, rule in (("internlm2", None), ("internlm2", "dynamic"), ("chatglm", None)):
        config = CASES[name] if rule is None else dict(CASES[name], max_position_embeddings=8, rope_scaling=dict(type=rule, factor=2.0))
        model = build(config, torch.float32)
        theirs = as_transformers(model, config)
        for n in (1, 7, 40):
            ids = torch.arange(n)[None] * 7 % 61
            a, b = model(input_ids=ids).logits, theirs(input_ids=ids).logits
            assert torch.allclose(a, b, atol=2e-6), (a - b).abs().max()
        print(name, rule or "", "equals", HF[name], (a - b).abs().max().item())


if __name__ == "__main__":
    main()

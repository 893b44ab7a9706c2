"""Results of PyTorch and transformers for tiny vision-language models: the expectations of test_model_vision.c.

    python tests/make_vision_fixtures.py tests/data/vision [NAME...]

needs torch and transformers; nothing else in the tree does. Weights, tokens and pixels are formulas that the test repeats, so a file holds a
configuration and results only: features of two images (tower_features; after the projector of the first: features), logits of the last token of each sequence, the loss, each tensor's gradient as a norm
and a product (make_model_fixtures.py), the losses of ten steps of AdamW in fp64, and how far PyTorch's own in fp32 are from them.
Projectors that transformers does not have are replaced by modules of this file.

SIZES are towers of a block or two with the pictures and patches of real ones, in fp64: of one image some rows of features, a product of each with the
formula's numbers for "row", and what its sequence makes of loss and gradients.
"""
import numpy as np
import torch
import transformers
from make_model_fixtures import CLIP, DECAY, LR, digits, fill, gradients, groups, mix64, numbers, tokens, write_cases

STEPS = 10
TEXT = dict(hidden_size=20, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=61,
            max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
CLIP_TOWER = dict(model_type="clip_vision_model", hidden_size=16, intermediate_size=36, num_hidden_layers=3, num_attention_heads=2, image_size=14, patch_size=4)
SIGLIP_TOWER = dict(model_type="siglip_vision_model", hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, image_size=17,
                    patch_size=4)


INTERN_TOWER = dict(model_type="internvl_vision", hidden_size=16, intermediate_size=36, num_hidden_layers=2, num_attention_heads=2, image_size=[25, 25],
                    patch_size=[4, 4])
INTERNVL = dict(model_type="internvl", image_token_id=60, tie_word_embeddings=False)


def llava(text_type, tower, **more):
    return dict(dict(model_type="llava", text_config=dict(TEXT, model_type=text_type), vision_config=tower, image_token_index=60), **more)


CASES = {
    "clip_llama": llava("llama", CLIP_TOWER),
    "clip_full": llava("llama", CLIP_TOWER, vision_feature_layer=-1, vision_feature_select_strategy="full", projector_hidden_act="gelu_pytorch_tanh",
                       multimodal_projector_bias=False),
    "siglip_qwen2": dict(llava("qwen2", SIGLIP_TOWER, vision_feature_layer=-1, vision_feature_select_strategy="full", tie_word_embeddings=True),
                         text_config=dict(TEXT, model_type="qwen2", head_dim=6, tie_word_embeddings=True)),
    "linear": llava("mistral", CLIP_TOWER, projector_type="linear"),
    "mlp": llava("qwen3", CLIP_TOWER, projector_type="mlp", projector_hidden_size=22, projector_dropout=0.0),
    "deep_mlp": llava("llama", SIGLIP_TOWER, vision_feature_layer=-3, vision_feature_select_strategy="full", projector_type="deep_mlp",
                      projector_hidden_size=18, projector_dropout=0.0),
    "pixel_shuffle": llava("llama", SIGLIP_TOWER, vision_feature_layer=1, vision_feature_select_strategy="full", projector_type="pixel_shuffle",
                           projector_shuffle=2),
    # as in AnyLLM: projectors of features after SigLIP's post_layernorm, and the mean of their outputs as one placeholder
    "normed": llava("qwen3", SIGLIP_TOWER, vision_feature_layer=-1, vision_feature_select_strategy="full", vision_feature_norm=True),
    "pooled": llava("qwen2", SIGLIP_TOWER, vision_feature_layer=-1, vision_feature_select_strategy="full", vision_feature_norm=True,
                    image_tokens="mean_pooling", projector_type="mlp", projector_hidden_size=22, projector_dropout=0.0),
    "pooled_clip": llava("llama", CLIP_TOWER, vision_feature_layer=-1, image_tokens="mean_pooling"),
    # the head size of SigLIP so400m
    "siglip_72": llava("llama", dict(SIGLIP_TOWER, hidden_size=144, num_attention_heads=2, image_size=11), vision_feature_layer=-1,
                       vision_feature_select_strategy="full", vision_feature_norm=True),
    # images attend in both directions, and are longer than the windows of the first layer
    "gemma3": dict(model_type="gemma3", mm_tokens_per_image=9, image_token_index=60, boi_token_index=58, eoi_token_index=59,
                   vision_config=dict(SIGLIP_TOWER, image_size=25, layer_norm_eps=1e-2, vision_use_head=False),
                   text_config=dict({k: v for k, v in TEXT.items() if k != "tie_word_embeddings"}, model_type="gemma3_text", rms_norm_eps=1.0,
                                    num_hidden_layers=3, query_pre_attn_scalar=100, sliding_window=5, sliding_window_pattern=2,
                                    rope_theta=1000000.0, rope_local_base_freq=500.0, pad_token_id=0)),
    # InternVL: layer scale, a norm and pixel shuffle in the projector; the tower of the small models and that of the large one
    "internvl": dict(INTERNVL, vision_config=dict(INTERN_TOWER, attention_bias=True, layer_norm_eps=1e-2), text_config=dict(TEXT, model_type="qwen2")),
    "internvl_rms": dict(INTERNVL, downsample_ratio=1.0, vision_feature_layer=1, projector_hidden_act="gelu_pytorch_tanh",
                         vision_config=dict(INTERN_TOWER, norm_type="rms_norm", use_qk_norm=True, image_size=[12, 12]),
                         text_config=dict(TEXT, model_type="qwen3")),
    "internvl_moe": dict(INTERNVL, vision_config=INTERN_TOWER, text_config=dict(TEXT, model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2,
                                                                                moe_intermediate_size=12, norm_topk_prob=True)),
    "internvl_gpt_oss": dict(INTERNVL, vision_config=INTERN_TOWER,
                             text_config=dict(TEXT, model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=8)),
}


def sized(kind, image_size, patch_size, width, heads, **more):
    """The configuration of a pretrained tower, except width and depth; features after a norm, before or after the blocks, so that they are of size 1."""
    tower = dict(model_type=f"{kind}_vision_model", hidden_size=width, intermediate_size=20, num_hidden_layers=2 if kind == "clip" else 1,
                 num_attention_heads=heads, image_size=image_size, patch_size=patch_size)
    siglip = dict(vision_feature_layer=-1, vision_feature_select_strategy="full", vision_feature_norm=True) if kind == "siglip" else {}
    config = llava("llama", tower, **siglip, **more)
    return dict(config, text_config=dict(config["text_config"], max_position_embeddings=1100))


SIZES = {
    "clip_b16_224": sized("clip", 224, 16, 16, 2),  # 196 patches
    "clip_l14_224": sized("clip", 224, 14, 16, 2),  # 256
    "clip_l14_336": sized("clip", 336, 14, 64, 1, vision_feature_select_strategy="full"),  # 576, and the class
    "siglip_b16_224": sized("siglip", 224, 16, 16, 2),  # 196
    "siglip_so400m_384": sized("siglip", 384, 14, 72, 1),  # 27 x 27 = 729 and 6 pixels left over
    "siglip_b16_512": sized("siglip", 512, 16, 16, 2),  # 1024
    # 1024, and the class; features are not concatenated
    "internvl_448": dict(INTERNVL, downsample_ratio=1.0, text_config=dict(TEXT, model_type="qwen2", max_position_embeddings=1100),
                         vision_config=dict(INTERN_TOWER, hidden_size=64, intermediate_size=20, num_attention_heads=1, num_hidden_layers=1,
                                            image_size=448, patch_size=14, attention_bias=True)),
}


class Projector(torch.nn.Module):
    """Layers, each but the last followed by GELU and a LayerNorm; squares of patches side by side before them."""

    def __init__(self, config):
        super().__init__()
        kind, n_in, n_out = config["projector_type"], config["vision_config"]["hidden_size"], config["text_config"]["hidden_size"]
        self.shuffle = config.get("projector_shuffle", 1)
        self.n_layers, self.norm = dict(linear=(1, False), mlp=(2, True), deep_mlp=(3, True), pixel_shuffle=(1, False))[kind]
        hidden = config.get("projector_hidden_size", n_out)
        widths = [n_in * self.shuffle**2] + [hidden] * (self.n_layers - 1) + [n_out]
        for i in range(self.n_layers):
            setattr(self, f"linear_{i + 1}", torch.nn.Linear(widths[i], widths[i + 1], bias=kind != "pixel_shuffle"))
            if self.norm and i < self.n_layers - 1:
                setattr(self, f"norm_{i + 1}", torch.nn.LayerNorm(hidden))

    def forward(self, x):
        f = self.shuffle
        if f > 1:
            n, p, c = x.shape
            side = int(p**0.5)
            x = x.view(n, side // f, f, side // f, f, c).permute(0, 1, 3, 2, 4, 5).reshape(n, p // f**2, f * f * c)
        for i in range(1, self.n_layers + 1):
            x = getattr(self, f"linear_{i}")(x)
            if i < self.n_layers:
                x = torch.nn.functional.gelu(x)
                x = getattr(self, f"norm_{i}")(x) if self.norm else x
        return x


class AsConfigured:
    """A model's get_image_features, where config.json has keys that transformers has not: what it projects, and how many rows of it there are."""

    def __init__(self, model, config):
        self.model, self.config = model, config

    def __call__(self, pixel_values, **_):
        projected = self.model.multi_modal_projector(features(self.model, self.config, pixel_values))
        if config_pools(self.config):
            projected = projected.mean(dim=1, keepdim=True)
        return transformers.modeling_outputs.BaseModelOutputWithPooling(pooler_output=list(projected))


def config_pools(config):
    return config.get("image_tokens") == "mean_pooling"


def features(model, config, pixel_values):
    """What the projector reads: a hidden state, or the one that transformers calls the last, after SigLIP's norm."""
    out = model.vision_tower(pixel_values, output_hidden_states=True)
    if config["model_type"] == "gemma3":
        return out.last_hidden_state
    if config["model_type"] == "internvl":
        return (out.last_hidden_state if config.get("vision_feature_layer", -1) == -1 else out.hidden_states[config["vision_feature_layer"]])[:, 1:]
    x = out.last_hidden_state if config.get("vision_feature_norm") else out.hidden_states[config.get("vision_feature_layer", -2)]
    return x[:, 1:] if config.get("vision_feature_select_strategy", "default") == "default" else x


def saved_name(name):
    """As save_pretrained has it."""
    for ours, theirs in (("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."),
                         ("model.multi_modal_projector.", "multi_modal_projector."), ("model.vision_tower.", "vision_tower.")):
        if name.startswith(ours):
            return theirs + name[len(ours):].removeprefix("vision_model.")
    raise ValueError(name)


def build(config):
    ours = ("vision_feature_norm", "image_tokens")
    if config["model_type"] == "gemma3":
        model = transformers.Gemma3ForConditionalGeneration._from_config(transformers.Gemma3Config(**config), attn_implementation="eager")
        return filled(model)
    if config["model_type"] == "internvl":
        experts = dict(experts_implementation="eager") if "num_experts_per_tok" in config["text_config"] else {}
        return filled(transformers.InternVLForConditionalGeneration._from_config(transformers.InternVLConfig(**config), attn_implementation="eager",
                                                                                 **experts))
    own = {k: v for k, v in config.items() if (not k.startswith("projector_") or k == "projector_hidden_act") and k not in ours}
    model = transformers.LlavaForConditionalGeneration._from_config(transformers.LlavaConfig(**own), attn_implementation="eager")
    if "projector_type" in config:
        model.model.multi_modal_projector = Projector(config)
    if any(k in config for k in ours):
        model.model.get_image_features = AsConfigured(model.model, config)
    return filled(model)


def filled(model):
    return fill(model, model.config.text_config.to_dict(), saved_name).train()


def image_size(config):
    size = config["vision_config"]["image_size"]
    return size[0] if isinstance(size, list) else size


def side_of(config):
    patch = config["vision_config"]["patch_size"]
    return image_size(config) // (patch[0] if isinstance(patch, list) else patch)


def shuffle_of(config):
    return round(1 / config.get("downsample_ratio", 0.5))


def n_features(config):
    v = config["vision_config"]
    if config["model_type"] == "internvl":
        return (side_of(config) // shuffle_of(config))**2
    side = v["image_size"] // v["patch_size"]
    if config["model_type"] == "gemma3":
        return config["mm_tokens_per_image"]
    lead = v["model_type"] == "clip_vision_model"
    drop = config.get("vision_feature_select_strategy", "default") == "default"
    return (side * side + lead - drop) // config.get("projector_shuffle", 1) ** 2


def n_tokens(config):
    return 1 if config_pools(config) else n_features(config)


def normalised(image, shape, clip):
    """What a processor makes of the bytes of an image, which are a formula."""
    with np.errstate(over="ignore"):
        x = mix64(np.uint64(7919 * (image + 1)) + np.arange(np.prod(shape), dtype=np.uint64)) >> np.uint64(20)
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073] if clip else [0.5] * 3)
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711] if clip else [0.5] * 3)
    return (torch.tensor(x.astype(np.uint8).reshape(shape)).float() * (1 / 255) - mean) / std


def pixels(config, image):
    S = image_size(config)
    return normalised(image, (S, S, 3), config["vision_config"]["model_type"] in ("clip_vision_model", "internvl_vision")).permute(2, 0, 1)


def batch(case, k):
    """Sequences of (ids, targets, images); an image's placeholders begin at position 1, the next image's one token after them."""
    config, N, image, out = case["config"], n_tokens(case["config"]), 0, []
    token = config.get("image_token_index", config.get("image_token_id"))
    for s, (n, n_images) in enumerate(zip(case["lens"], case["images"])):
        ids = tokens(k, s, n + 1, token)
        for i in range(n_images):
            ids[1 + i * (N + 1): 1 + i * (N + 1) + N] = token
        targets = torch.where(ids[1:] == token, -100, ids[1:])
        out.append((ids[:-1], targets, [pixels(config, 10 * k + image + i) for i in range(n_images)]))
        image += n_images
    return out


def loss_of(model, data):
    total, count, last = 0.0, 0, []
    for ids, targets, images in data:
        images = torch.stack(images).to(next(model.parameters()).dtype) if images else None
        of_image = dict(token_type_ids=(ids == model.config.image_token_id).long()[None]) if model.config.model_type == "gemma3" else {}
        z = model(input_ids=ids[None], pixel_values=images, use_cache=False, **of_image).logits[0]
        total = total + torch.nn.functional.cross_entropy(z, targets, reduction="sum", ignore_index=-100)
        count += int((targets >= 0).sum())
        last.append(z[-1])
    return total / count, torch.stack(last)


def learn(model, n_steps, loss_of_step):
    """The losses of AdamW in the type of the model."""
    params = [p for p in model.named_parameters() if p[1].requires_grad]
    opt = torch.optim.AdamW(groups(params), lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(n_steps):
        opt.zero_grad()
        loss = loss_of_step(model, step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in params if p.grad is not None], CLIP)
        opt.step()
        losses.append(float(loss.detach()))
    return losses


def losses(build, n_steps, loss_of_step):
    """In fp64, and how far those in fp32 are from them."""
    exact, fp32 = (learn(build().to(dtype), n_steps, loss_of_step) for dtype in (torch.float64, torch.float32))
    return dict(losses=digits(exact), fp32_error=digits(max(abs(a - b) / b for a, b in zip(fp32, exact))))


def tower_features(model, config, image):
    return features(model.model, config, pixels(config, image)[None].to(next(model.parameters()).dtype))


def shuffled(model, x):
    """What InternVL's projector gets."""
    if not hasattr(model.model, "pixel_shuffle"):
        return x
    side = int(x.shape[1]**0.5)
    return model.model.pixel_shuffle(x.reshape(len(x), side, side, -1), model.config.downsample_ratio).flatten(1, 2)


def averaged(model, x):
    """What Gemma 3's projector makes of the tower's features before its norm."""
    projector = model.model.multi_modal_projector
    if not hasattr(projector, "avg_pool"):
        return x
    side = projector.patches_per_image
    return projector.avg_pool(x.transpose(1, 2).reshape(len(x), -1, side, side)).flatten(2).transpose(1, 2)


def make_sized(name, config):
    N = n_tokens(config)
    case = dict(name=name, config=config, lens=[N + 6], images=[1], n_tokens=N)
    model = build(config).double()
    loss, _ = loss_of(model, batch(case, 0))
    loss.backward()
    side = side_of(config)
    rows = tower_features(model, config, 0)[0].detach().numpy()
    case["rows"] = {str(r): digits(rows[r].tolist()) for r in (0, side, N - 1)}
    case["products"] = digits((rows @ numbers("row", rows.shape[1])).tolist())
    case["loss"] = digits(float(loss.detach()))
    return case | gradients(model, config["text_config"], saved_name)


def make(name, config):
    N = n_tokens(config)
    case = dict(name=name, config=config, lens=[N + 6, 5, 2 * N + 4], images=[1, 0, 2], lr=LR, weight_decay=DECAY, clip=CLIP)
    model = build(config)
    loss, last = loss_of(model, batch(case, 0))
    loss.backward()
    case["n_tokens"] = N
    case["tower_features"] = [digits(averaged(model, tower_features(model, config, k))[0].detach().tolist()) for k in range(2)]
    projected = model.model.multi_modal_projector(shuffled(model, tower_features(model, config, 0)))[0]
    projected = projected.mean(dim=0, keepdim=True) if config_pools(config) else projected
    case["features"] = digits(projected.detach().tolist())
    case["logits"] = digits(last.detach().tolist())
    case["loss"] = digits(float(loss.detach()))
    case.update(gradients(model, config["text_config"], saved_name))
    return case | losses(lambda: build(config), STEPS, lambda model, step: loss_of(model, batch(case, step % 2))[0])


if __name__ == "__main__":
    write_cases(lambda name: make(name, CASES[name]) if name in CASES else make_sized(name, SIZES[name]), CASES | SIZES)

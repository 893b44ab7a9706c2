"""Results of PyTorch and transformers for tiny models whose images are grids of cells: the expectations of test_model_grids.c.

    python tests/make_grid_fixtures.py tests/data/vision [NAME...]

needs torch and transformers; nothing else in the tree does. As make_vision_fixtures.py; images of a sequence are [rows, columns] of cells.
"""
import torch
import transformers
from make_model_fixtures import CLIP, DECAY, LR, digits, fill, gradients, tokens, write_cases
from make_vision_fixtures import losses, normalised

STEPS = 20
TEXT = dict(hidden_size=24, intermediate_size=28, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, vocab_size=61,
            max_position_embeddings=96, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
TOWER = dict(hidden_size=24, intermediate_size=20, num_heads=2, patch_size=3, out_hidden_size=24)
# heads rotate half of their elements; rms_norm_eps as in make_model_fixtures.py
QWEN35 = dict(dict(TEXT, rms_norm_eps=1.0), head_dim=12, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=5, linear_value_head_dim=7,
              layer_types=["linear_attention", "full_attention", "linear_attention"],
              rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 1],
                                   mrope_interleaved=True))
TOKENS = dict(image_token_id=60, video_token_id=59, vision_start_token_id=58, vision_end_token_id=57)
CASES = {
    "qwen2_5_vl": dict(TOKENS, model_type="qwen2_5_vl", tie_word_embeddings=False,
                       text_config=dict(TEXT, model_type="qwen2_5_vl_text",
                                        rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[1, 2, 1])),
                       vision_config=dict(TOWER, model_type="qwen2_5_vl_vision", depth=3, window_size=13, fullatt_block_indexes=[1])),
    "qwen3_vl": dict(TOKENS, model_type="qwen3_vl", tie_word_embeddings=True,
                     text_config=dict(TEXT, model_type="qwen3_vl_text", head_dim=10, tie_word_embeddings=True,
                                      rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 2, 1],
                                                           mrope_interleaved=True)),
                     vision_config=dict(TOWER, model_type="qwen3_vl_vision", depth=3, num_position_embeddings=25,
                                        deepstack_visual_indexes=[0, 2])),
    # a layer without experts
    "qwen3_vl_moe": dict(TOKENS, model_type="qwen3_vl_moe", tie_word_embeddings=False,
                         text_config=dict(dict(TEXT, rms_norm_eps=1.0), model_type="qwen3_vl_moe_text", head_dim=10, num_experts=5, num_experts_per_tok=2,
                                          moe_intermediate_size=10, mlp_only_layers=[1], tie_word_embeddings=False,
                                          rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 2, 1],
                                                               mrope_interleaved=True)),
                         vision_config=dict(TOWER, model_type="qwen3_vl_moe_vision", depth=3, num_position_embeddings=25,
                                            deepstack_visual_indexes=[0, 2])),
    "qwen3_5": dict(TOKENS, model_type="qwen3_5", tie_word_embeddings=False, text_config=dict(QWEN35, model_type="qwen3_5_text"),
                    vision_config=dict(TOWER, model_type="qwen3_5_vision", depth=2, num_position_embeddings=25)),
    "qwen3_5_moe": dict(TOKENS, model_type="qwen3_5_moe", tie_word_embeddings=False,
                        text_config=dict(QWEN35, model_type="qwen3_5_moe_text", num_experts=5, num_experts_per_tok=2, moe_intermediate_size=10,
                                         shared_expert_intermediate_size=14),
                        vision_config=dict(TOWER, model_type="qwen3_5_moe_vision", depth=2, num_position_embeddings=25)),
}
LENS = [24, 7, 29]
IMAGES = [[[3, 5]], [], [[2, 2], [5, 3]]]


def saved_name(name):
    """dtrain's name of a module's tensor."""
    for theirs, ours in (("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."),
                         ("model.visual.merger.mlp.0.", "multi_modal_projector.linear_1."),
                         ("model.visual.merger.mlp.2.", "multi_modal_projector.linear_2."),
                         ("model.visual.merger.linear_fc", "multi_modal_projector.linear_"),
                         ("model.visual.deepstack_merger_list.", "multi_modal_projector.deepstack."), ("model.visual.", "vision_tower.")):
        if name.startswith(theirs):
            return ours + name[len(theirs):]
    raise ValueError(name)


def build(config):
    kinds = dict(qwen2_5_vl=(transformers.Qwen2_5_VLConfig, transformers.Qwen2_5_VLForConditionalGeneration),
                 qwen3_vl=(transformers.Qwen3VLConfig, transformers.Qwen3VLForConditionalGeneration),
                 qwen3_vl_moe=(transformers.Qwen3VLMoeConfig, transformers.Qwen3VLMoeForConditionalGeneration),
                 qwen3_5=(transformers.Qwen3_5Config, transformers.Qwen3_5ForConditionalGeneration),
                 qwen3_5_moe=(transformers.Qwen3_5MoeConfig, transformers.Qwen3_5MoeForConditionalGeneration))
    make, model = kinds[config["model_type"]]
    experts = dict(experts_implementation="eager") if "num_experts" in config["text_config"] else {}
    model = model._from_config(make(**{k: v for k, v in config.items() if k != "model_type"}), attn_implementation="eager", **experts)
    return fill(model, config, saved_name).train()


def pixels(config, image, grid):
    """Patches of an image whose bytes are a formula, cell by cell."""
    v = config["vision_config"]
    p, m = v["patch_size"], 2
    S, n = p * m, grid[0] * grid[1]
    x = normalised(image, (n, S, S, 3), True).reshape(n, m, p, m, p, 3).permute(0, 1, 3, 5, 2, 4)  # cell, a, b, colour, y, x
    return x.unsqueeze(4).expand(-1, -1, -1, -1, 2, -1, -1).reshape(n * m * m, -1)


def batch(case, k):
    """Sequences of (ids, targets, pixels, grids); an image's placeholders begin at position 1, the next image's one token after them."""
    config, image, out = case["config"], 0, []
    token = config["image_token_id"]
    for s, (n, grids) in enumerate(zip(case["lens"], case["images"])):
        ids = tokens(k, s, n + 1, token)
        at = 1
        for r, c in grids:
            ids[at:at + r * c] = token
            at += r * c + 1
        targets = torch.where(ids[1:] == token, -100, ids[1:])
        out.append((ids[:-1], targets, [pixels(config, 10 * k + image + i, g) for i, g in enumerate(grids)], grids))
        image += len(grids)
    return out


def loss_of(model, data):
    total, count, last = 0.0, 0, []
    dtype = next(model.parameters()).dtype
    for ids, targets, images, grids in data:
        more = {}
        if images:
            more = dict(pixel_values=torch.cat(images).to(dtype), image_grid_thw=torch.tensor([[1, 2 * r, 2 * c] for r, c in grids]),
                        mm_token_type_ids=(ids == model.config.image_token_id).int()[None])
        model.model.rope_deltas = None
        z = model(input_ids=ids[None], use_cache=False, **more).logits[0]
        total = total + torch.nn.functional.cross_entropy(z, targets, reduction="sum", ignore_index=-100)
        count += int((targets >= 0).sum())
        last.append(z[-1])
    return total / count, last


def make(name, config):
    case = dict(name=name, config=config, lens=LENS, images=IMAGES, lr=LR, weight_decay=DECAY, clip=CLIP)
    model = build(config)
    loss, last = loss_of(model, batch(case, 0))
    loss.backward()
    case["logits"] = [digits(row.tolist()) for row in last]
    case["loss"] = digits(float(loss.detach()))
    case.update(gradients(model, config, saved_name))
    return case | losses(lambda: build(config), STEPS, lambda model, step: loss_of(model, batch(case, step % 2))[0])


if __name__ == "__main__":
    write_cases(lambda name: make(name, CASES[name]), CASES)

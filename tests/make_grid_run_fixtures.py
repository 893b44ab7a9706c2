"""Tiny directories of Qwen2.5-VL, Qwen3-VL, Qwen3.5 and InternVL, and what transformers makes of them: the expectations of e2e_vision_grids.sh and of
test_model_grids.c.

    python tests/make_grid_run_fixtures.py tests/data/vision [MODEL...]

needs torch, transformers and Pillow; nothing else in the tree does. grids/MODEL is a directory with a tokenizer of bytes. grids/cells.json: the
grid and the bytes (FNV-1a) of images. grids/chats.jsonl: records; grids/tiled_chats.jsonl: records with
ids, of InternVL. grids/expected.json: of each model the losses of AdamW on all records at once,
and answers to prompts, greedily and by beams.
"""
import json
import os
import sys

import numpy as np
import torch
import transformers
from fixtures import fnv
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

FILES = "tests/data/image/files/"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif content['type'] == 'video' or 'video' in content %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# as published for InternVL 3
TILED_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>"]
TILED_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}{% elif content['type'] == 'video' %}"
    "{{ '<video>\n' }}{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}{{'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}")
IMAGES = ["depth8_type2.png", "rgb.jpg", "frames.png"]
SIZED = IMAGES + ["depth8_type6.png", "cmyk.jpg", "l.jpg", "P6_255.ppm", "lossless.webp"]
N_NEW, N_BEAMS, STEPS, LR = 8, 3, 4, 1e-3


def tokenizer(kind):
    special = TILED_SPECIAL if kind == "internvl" else SPECIAL
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    more = dict(extra_special_tokens=dict(start_image_token="<img>", end_image_token="</img>", context_image_token="<IMG_CONTEXT>", video_token="<video>"))
    tok = transformers.PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|im_end|>", pad_token="<|endoftext|>", **(more if kind == "internvl" else {}))
    tok.chat_template = TILED_TEMPLATE if kind == "internvl" else TEMPLATE
    return tok


def tiled_config(ids):
    text = dict(model_type="qwen2", hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=264,
                max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=ids["<|im_end|>"], tie_word_embeddings=False)
    tower = dict(model_type="internvl_vision", hidden_size=16, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, attention_bias=True,
                 image_size=[12, 12], patch_size=[3, 3])
    return transformers.InternVLConfig(text_config=text, vision_config=tower, image_token_id=ids["<IMG_CONTEXT>"], image_seq_length=4,
                                       tie_word_embeddings=False)


def config(kind, ids):
    if kind == "internvl":
        return tiled_config(ids)
    tokens = dict(image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"], vision_start_token_id=ids["<|vision_start|>"],
                  vision_end_token_id=ids["<|vision_end|>"])
    text = dict(hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=264,
                max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=ids["<|im_end|>"])
    tower = dict(hidden_size=16, intermediate_size=12, num_heads=2, patch_size=6, out_hidden_size=16, depth=2)
    rope = dict(rope_type="default", rope_theta=10000.0, mrope_section=[1, 2, 1])
    if kind == "qwen2_5_vl":
        return transformers.Qwen2_5_VLConfig(**tokens, text_config=dict(text, rope_parameters=rope), tie_word_embeddings=False,
                                             vision_config=dict(tower, window_size=24, fullatt_block_indexes=[1]))
    if kind.startswith("qwen3_5"):
        text.update(num_hidden_layers=3, head_dim=12, linear_num_key_heads=1, linear_num_value_heads=3, linear_key_head_dim=4, linear_value_head_dim=5,
                    layer_types=["linear_attention", "full_attention", "linear_attention"],
                    rope_parameters=dict(rope, mrope_section=[1, 1, 1], mrope_interleaved=True, partial_rotary_factor=0.5))
        tower.update(num_position_embeddings=25)
        if kind == "qwen3_5":
            return transformers.Qwen3_5Config(**tokens, text_config=text, vision_config=tower, tie_word_embeddings=False)
        text.update(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=10)
        return transformers.Qwen3_5MoeConfig(**tokens, text_config=text, vision_config=tower, tie_word_embeddings=False)
    text.update(head_dim=8, rope_parameters=dict(rope, mrope_interleaved=True))
    tower.update(num_position_embeddings=25, deepstack_visual_indexes=[0])
    if kind == "qwen3_vl_moe":
        text.update(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12)
        return transformers.Qwen3VLMoeConfig(**tokens, text_config=text, vision_config=tower, tie_word_embeddings=False)
    return transformers.Qwen3VLConfig(**tokens, text_config=text, vision_config=tower, tie_word_embeddings=True)


PROCESSOR = dict(min_pixels=4 * 144, max_pixels=24 * 144, patch_size=6, temporal_patch_size=2, merge_size=2,
                 image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711],
                 image_processor_type="Qwen2VLImageProcessor")


# crop_to_patches as in the published file: InternVLProcessor sets it
TILED_PROCESSOR = dict(size=dict(height=12, width=12), crop_to_patches=False, min_patches=1, max_patches=6, image_mean=[0.485, 0.456, 0.406],
                       image_std=[0.229, 0.224, 0.225], image_processor_type="GotOcr2ImageProcessor")


def tiled_processor(pc):
    return GotOcr2ImageProcessorPil(**{k: v for k, v in pc.items() if k != "image_processor_type"})


def processor(pc):
    return Qwen2VLImageProcessorPil(**{k: v for k, v in pc.items() if k != "image_processor_type"})


def cells():
    """Bytes of each cell, row by row, from the values that the processor returns."""
    out = []
    wide = dict(PROCESSOR, max_pixels=10**6)
    for name in SIZED:
        image = Image.open(FILES + name).convert("RGB")
        for pc in (PROCESSOR, dict(PROCESSOR, max_pixels=10**6), dict(PROCESSOR, patch_size=5, min_pixels=3000)):
            r = processor(pc)([image], return_tensors="np")
            p, (_, h, w) = pc["patch_size"], r["image_grid_thw"][0].tolist()
            x = r["pixel_values"].reshape(-1, 2, 2, 3, 2, p, p)[:, :, :, :, 0].astype(np.float64)
            x = (x * np.array(pc["image_std"])[:, None, None] + np.array(pc["image_mean"])[:, None, None]) * 255
            bytes_ = np.rint(x).astype(np.uint8).transpose(0, 1, 4, 2, 5, 3).tobytes()
            out.append(dict(file=name, config=pc, rows=h // 2, columns=w // 2, fnv="%016x" % fnv(bytes_)))
    for name in SIZED:
        image = Image.open(FILES + name).convert("RGB")
        for pc in (TILED_PROCESSOR, dict(TILED_PROCESSOR, max_patches=12), dict(TILED_PROCESSOR, min_patches=3, max_patches=5, size=dict(height=7, width=7)),
                   dict(TILED_PROCESSOR, max_patches=1)):
            r = tiled_processor(pc)([image], crop_to_patches=True, return_tensors="np")
            x = np.asarray(r["pixel_values"], dtype=np.float64) * np.array(pc["image_std"])[:, None, None] + np.array(pc["image_mean"])[:, None, None]
            bytes_ = np.rint(x * 255).astype(np.uint8).transpose(0, 2, 3, 1).tobytes()
            out.append(dict(file=name, config=pc, rows=int(r["num_patches"][0]), columns=1, fnv="%016x" % fnv(bytes_)))
    return out


def records():
    part = lambda k: dict(type="image", image=IMAGES[k])
    chat = lambda parts, answer: dict(messages=[dict(role="user", content=parts), dict(role="assistant", content=answer)])
    return [chat([part(0), dict(type="text", text="What?")], "One."), chat([part(1), part(2), dict(type="text", text="Compare!")], "Two."),
            chat([dict(type="text", text="No image")], "None."), chat([part(2), dict(type="text", text="And?")], "Three.")]


class TextAndImages(transformers.InternVLProcessor):
    """Its processor of videos needs torchvision, even if there are none."""

    def check_argument_for_proper_class(self, name, argument):
        return None


class Inputs:
    def __init__(self, tok, messages, generate):
        paths = [p["image"] for m in messages if isinstance(m["content"], list) for p in m["content"] if p["type"] == "image"]
        if tok.chat_template == TILED_TEMPLATE:
            whole = TextAndImages(image_processor=tiled_processor(TILED_PROCESSOR), tokenizer=tok, image_seq_length=4)
            text = tok.apply_chat_template(messages, add_generation_prompt=generate, tokenize=False)
            x = whole(text=[text], images=[Image.open(FILES + p).convert("RGB") for p in paths] or None, return_tensors="pt")
            self.ids, self.more = x["input_ids"][0].tolist(), {k: v for k, v in x.items() if k == "pixel_values"}
            return
        pad = tok.convert_tokens_to_ids("<|image_pad|>")
        ids = tok.apply_chat_template(messages, add_generation_prompt=generate, return_dict=True)["input_ids"]
        self.more = {}
        if paths:
            r = processor(PROCESSOR)([Image.open(FILES + p).convert("RGB") for p in paths], return_tensors="pt")
            n = iter([int(g.prod()) // 4 for g in r["image_grid_thw"]])
            ids = [x for t in ids for x in ([t] * (next(n) if t == pad else 1))]
            self.more = dict(pixel_values=r["pixel_values"], image_grid_thw=r["image_grid_thw"],
                             mm_token_type_ids=(torch.tensor(ids) == pad).int()[None])
        self.ids = ids


# messages, images, and the messages as the processor takes them, if those are others
TILED_CHATS = [
    ([("user", "<image>\nWhat is it?"), ("assistant", "red")], ["rgb.jpg"], None),
    ([("system", "See."), ("user", "No mark"), ("assistant", "a")], ["rgb.jpg", "frames.png"],
     [("system", "See."), ("user", [dict(type="image"), dict(type="image"), dict(type="text", text="No mark")]), ("assistant", "a")]),
    ([("user", "say <image> or <image>?"), ("assistant", "no"), ("user", "Why <img>?"), ("assistant", "so")], ["depth8_type2.png", "P6_255.ppm"], None),
    ([("user", "hello"), ("assistant", "yes")], [], None),
    ([("user", [dict(type="text", text="see "), dict(type="image"), dict(type="text", text="this")]), ("assistant", "ok")], ["frames.png"], None)]


def tiled_chats(tok):
    """Records, and the ids that InternVL's processor makes of them."""
    whole, out = TextAndImages(image_processor=tiled_processor(TILED_PROCESSOR), tokenizer=tok, image_seq_length=4), []
    for turns, files, taken in TILED_CHATS:
        said = [dict(role=r, content=c.replace("<image>", "<IMG_CONTEXT>") if isinstance(c, str) else c) for r, c in taken or turns]
        images = [Image.open(FILES + f).convert("RGB") for f in files]
        ids = whole(text=[tok.apply_chat_template(said, tokenize=False)], images=images or None)["input_ids"][0]
        out.append(dict(messages=[dict(role=r, content=c) for r, c in turns], **(dict(images=files) if files else {}), ids=list(map(int, ids))))
    return out


def losses(model, tok):
    data, start = [], tok.convert_tokens_to_ids("<|im_start|>")
    for r in records():
        x = Inputs(tok, r["messages"], False)
        ids = x.ids if x.ids[-1] == tok.eos_token_id else x.ids[:-1]  # without the line end after the last message
        first = len(ids) - len(tok(r["messages"][-1]["content"] + "<|im_end|>")["input_ids"])
        data.append((ids, first, x.more))
    opt = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    out = []
    for _ in range(STEPS):
        total, n = 0, 0
        for ids, first, more in data:
            ids = torch.tensor(ids)
            model.model.rope_deltas = None
            more = {k: v[:, :len(ids)] if k == "mm_token_type_ids" else v for k, v in more.items()}
            z = model(input_ids=ids[None], use_cache=False, **more).logits[0]
            total = total + torch.nn.functional.cross_entropy(z[first - 1:-1], ids[first:], reduction="sum")
            n += len(ids) - first
        opt.zero_grad()
        (total / n).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        out.append(float((total / n).detach()))
    return out


def answers(model, tok):
    out = []
    for r in records():
        x = Inputs(tok, r["messages"][:1], True)
        ids, found = torch.tensor(x.ids)[None], {}
        for how, beams in (("greedy", 1), ("beams", N_BEAMS)):
            model.model.rope_deltas = None
            y = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=N_NEW, do_sample=False, num_beams=beams, **x.more)
            found[how] = y[0, ids.shape[1]:].tolist()
        out.append(dict(found, prompt_ids=x.ids))
    return out


def main():
    out = os.path.join(sys.argv[1], "grids")
    torch.set_num_threads(1)
    expected, path = {}, os.path.join(out, "expected.json")
    if sys.argv[2:]:
        with open(path) as f:
            expected = json.load(f)
    for kind in sys.argv[2:] or ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "internvl"):
        tok = tokenizer(kind)
        ids = {s: tok.convert_tokens_to_ids(s) for s in SPECIAL + TILED_SPECIAL}
        torch.manual_seed(12 if kind == "qwen3_5" else 5)  # answers differ
        model = transformers.AutoModelForImageTextToText.from_config(config(kind, ids))
        with torch.no_grad():
            for n, p in model.named_parameters():
                if p.dim() > 1 and "conv1d" not in n:
                    p.normal_(0, 0.5 if "embed" in n else 1.5 / p.shape[-1]**0.5)
                p.copy_(p.bfloat16().float())
        directory = os.path.join(out, kind)
        model.bfloat16().save_pretrained(directory)
        tok.save_pretrained(directory)
        with open(os.path.join(directory, "preprocessor_config.json"), "w") as f:
            json.dump(TILED_PROCESSOR if kind == "internvl" else PROCESSOR, f)
        load = lambda: transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
        expected[kind] = dict(answers=answers(load().eval(), tok), losses=losses(load().train(), tok))
        print(kind, expected[kind]["losses"], [a["greedy"] for a in expected[kind]["answers"]])
    for name, what in (("expected", expected), ("cells", cells())):
        with open(os.path.join(out, name + ".json"), "w") as f:
            json.dump(what, f, separators=(",", ":"))
            f.write("\n")
    with open(os.path.join(out, "chats.jsonl"), "w") as f:
        for r in records():
            print(json.dumps(r), file=f)
    with open(os.path.join(out, "tiled_chats.jsonl"), "w") as f:
        for r in tiled_chats(tokenizer("internvl")):
            print(json.dumps(r), file=f)


if __name__ == "__main__":
    main()

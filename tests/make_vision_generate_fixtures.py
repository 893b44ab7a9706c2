"""Text that transformers generates with images, greedily and by beam search: the expectations of e2e_vision_generate.sh.

    python tests/make_vision_generate_fixtures.py tests/data/vision/generate.jsonl tests/data/vision/gemma3_chats.jsonl

needs torch, transformers and Pillow. The second file has conversations, and the ids that Gemma 3's processor makes of them (e2e_vision_gemma.sh). Models are the directories tests/data/vision/hf, images are files of tests/data/image/files. A line has a model, a
prompt, its images, and what follows it: ids and log-probabilities of the greedy continuation, ids and scores of the beams.
"""
import json
import os
import sys

import torch
import transformers
from transformers.image_utils import load_image

NEW, BEAMS, RETURN, PENALTY = 10, 4, 2, 0.5
PROMPTS = [("see <image> what is it?", ["rgb.jpg"]), ("<image>a", ["depth8_type2.png"]), ("no picture here", []),
           ("<image><image> same?", ["depth8_type6.png", "lossy.webp"]), ("<image> or <image>, which", ["lossy.webp", "depth8_type6.png"]),
           ("ends with <image>", ["P6_255.ppm"])]
HF, FILES = "tests/data/vision/hf", "tests/data/image/files"


def encode(tokenizer, text, model):
    """The ids of a prompt, as the model's processor makes them."""
    if model.config.model_type == "gemma3":
        processor = transformers.Gemma3Processor(transformers.Gemma3ImageProcessorPil(), tokenizer, image_seq_length=model.config.mm_tokens_per_image)
        text = text.replace("<image>", processor.full_image_sequence)
    else:
        text = text.replace("<image>", "<image>" * placeholders(model.config))
    return tokenizer(text, add_special_tokens=True, return_tensors="pt").input_ids


def placeholders(config):
    side = config.vision_config.image_size // config.vision_config.patch_size
    return side**2


def make(name, text, files):
    path = os.path.join(HF, name)
    model = transformers.AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(path)
    processor = transformers.AutoImageProcessor.from_pretrained(path, use_fast=False)
    ids = encode(tokenizer, text, model)
    images = [load_image(os.path.join(FILES, f)) for f in files]
    more = dict(pixel_values=processor(images=images, return_tensors="pt").pixel_values) if images else {}
    if model.config.model_type == "gemma3":
        more["token_type_ids"] = (ids == model.config.image_token_id).long()
    how = dict(more, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, return_dict_in_generate=True, output_logits=True, pad_token_id=59)
    with torch.no_grad():
        greedy = model.generate(ids, **how)
        beams = model.generate(ids, num_beams=BEAMS, num_return_sequences=RETURN, length_penalty=PENALTY, output_scores=True, **how)
    new = greedy.sequences[0, ids.shape[1]:].tolist()
    logprobs = [float("%.7g" % torch.log_softmax(l[0].double(), 0)[t]) for l, t in zip(greedy.logits, new)]

    def row(r):
        out = r[ids.shape[1]:].tolist()
        return out[:out.index(2) + 1] if 2 in out else out

    return dict(model=name, prompt=text, images=files, prompt_ids=ids[0].tolist(), ids=new, logprobs=logprobs,
                beams=[dict(ids=row(r), score=float("%.7g" % s)) for r, s in zip(beams.sequences, beams.sequences_scores.tolist())])


CHATS = [([("user", [dict(type="image"), dict(type="text", text=" What is it?")]), ("assistant", "red")], ["rgb.jpg"]),
         ([("user", "<image>\nWhat is it?"), ("assistant", "a blue one")], ["lossy.webp"]),
         ([("user", "hello"), ("assistant", "yes")], []),
         ([("user", "say <image> or <image>"), ("assistant", "no"), ("user", "Why?"), ("assistant", "so")], ["rgb.jpg", "P6_255.ppm"])]


def make_chat(turns, files):
    """A record, and the ids that Gemma 3's processor makes of it."""
    path = os.path.join(HF, "gemma3")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(path)
    processor = transformers.Gemma3Processor(transformers.Gemma3ImageProcessorPil.from_pretrained(path), tokenizer, image_seq_length=9)
    said = [dict(role=r, content=c.replace("<image>", processor.boi_token) if isinstance(c, str) else c) for r, c in turns]
    images = [load_image(os.path.join(FILES, f)) for f in files]
    ids = processor(text=tokenizer.apply_chat_template(said, tokenize=False), images=images or None, add_special_tokens=False)["input_ids"][0]
    return dict(messages=[dict(role=r, content=c) for r, c in turns], **(dict(images=files) if files else {}), ids=list(map(int, ids)))


def main():
    with open(sys.argv[2], "w") as f:
        for turns, files in CHATS:
            f.write(json.dumps(make_chat(turns, files)) + "\n")
    with open(sys.argv[1], "w") as f:
        for name in ("clip_llama", "siglip_qwen2", "gemma3"):
            for text, files in PROMPTS:
                f.write(json.dumps(make(name, text, files)) + "\n")


main()

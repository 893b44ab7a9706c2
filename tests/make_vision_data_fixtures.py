#!/usr/bin/env python3
"""Write tests/data/vision_data: records with images, and the inputs that transformers' LlavaProcessor creates from them.

    model/          a tokenizer with <image>, and config.json and preprocessor_config.json of a tiny llava
    *.ppm, *.png    images
    records.jsonl   a record a line: LLaVA's form and that of messages with parts
    expected.json   for each record the ids, which of them the assistant says (its end included), and the images before they
                    are rescaled, as hexadecimal

Run with a Python that has transformers and Pillow; the tests need none. C test: tests/test_data_make_images.c.

    python tests/make_vision_data_fixtures.py
"""
import json
import os

import numpy as np
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil as CLIPImageProcessor

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "vision_data")
SIZE, PATCH = 8, 4
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{% set text = message['content'] %}{% else %}{% set ns = namespace(text='') %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{% set ns.text = ns.text + '<image>\n' %}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{% set ns.text = ns.text + part['text'] %}{% endfor %}"
    "{% set text = ns.text %}{% endif %}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ text + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ text + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)


def make_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator(["What is in the picture? a red square and a blue circle, user assistant system"] * 20, trainer)
    tokenizer.add_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>", "<image>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")
    fast.save_pretrained(folder)
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|im_end|>",
                                   extra_special_tokens={"image_token": "<image>"})


def make_pictures():
    rng = np.random.default_rng(11)
    for name, height, width in (("wide.ppm", 9, 17), ("high.ppm", 21, 10), ("square.png", 8, 8)):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(os.path.join(HERE, name))


def records():
    """(record, messages as the processor takes them, images)"""
    def llava(images, *turns):
        record = {"id": "x", "image": images[0] if len(images) == 1 else images,
                  "conversations": [{"from": "human" if i % 2 == 0 else "gpt", "value": t} for i, t in enumerate(turns)]}
        return record, [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns)], images

    yield llava(["wide.ppm"], "<image>\nWhat is in the picture?", "a red square")
    yield llava(["high.ppm", "square.png"], "one <image>two<image> three", "blue", "and the square?", " red <")
    yield llava(["square.png"], "What is it?\n<image>", "a circle, é")
    parts = [{"type": "image"}, {"type": "text", "text": "What is in the picture?"}]
    messages = [{"role": "system", "content": "see"}, {"role": "user", "content": parts}, {"role": "assistant", "content": "a blue circle"}]
    yield {"messages": messages, "images": ["high.ppm"]}, messages, ["high.ppm"]
    named = [dict(messages[1], content=[{"type": "text", "text": "and "}, {"type": "image", "image": "wide.ppm"}, {"type": "text", "text": "this?"}]),
             messages[2]]
    yield {"messages": named}, named, ["wide.ppm"]
    # what lists images and has no place for them: before the first question
    plain = [{"role": "user", "content": "What is in the picture?"}, {"role": "assistant", "content": "squares"}]
    placed = [{"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": plain[0]["content"]}]}, plain[1]]
    yield {"messages": plain, "images": ["wide.ppm", {"path": "square.png"}]}, placed, ["wide.ppm", "square.png"]
    yield {"messages": plain}, plain, []


def main():
    model = os.path.join(HERE, "model")
    os.makedirs(model, exist_ok=True)
    tokenizer = make_tokenizer(model)
    make_pictures()
    prepare = CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})
    prepare.save_pretrained(model)
    settings = json.load(open(os.path.join(model, "preprocessor_config.json")))
    settings["image_processor_type"] = "CLIPImageProcessor"
    json.dump(settings, open(os.path.join(model, "preprocessor_config.json"), "w"), indent=1, sort_keys=True)
    processor = LlavaProcessor(image_processor=prepare, tokenizer=tokenizer, patch_size=PATCH, vision_feature_select_strategy="default",
                               num_additional_image_tokens=1, chat_template=TEMPLATE)
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    config = {"model_type": "llava", "image_token_index": image_id, "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
              "text_config": {"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
                              "num_attention_heads": 2, "vocab_size": len(tokenizer)},
              "vision_config": {"model_type": "clip_vision_model", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
                                "num_attention_heads": 2, "image_size": SIZE, "patch_size": PATCH}}
    json.dump(config, open(os.path.join(model, "config.json"), "w"), indent=1)
    expected = []
    with open(os.path.join(HERE, "records.jsonl"), "w") as lines:
        for record, messages, names in records():
            lines.write(json.dumps(record) + "\n")
            images = [Image.open(os.path.join(HERE, name)) for name in names]
            bare = [dict(m, content=m["content"] if isinstance(m["content"], str) else
                         [{k: v for k, v in p.items() if k != "image"} for p in m["content"]]) for m in messages]
            text = processor.apply_chat_template(bare, tokenize=False)
            ids = processor(images=images or None, text=text)["input_ids"]
            ids = ids[0] if isinstance(ids[0], list) else ids
            alone = tokenizer.apply_chat_template(bare, chat_template=TEMPLATE, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            mask = []
            for token, says in zip(alone["input_ids"], alone["assistant_masks"]):
                mask += [says] if token != image_id else [0] * (SIZE // PATCH) ** 2
            assert len(mask) == len(ids), (len(mask), len(ids))
            pixels = prepare(images, do_rescale=False, do_normalize=False)["pixel_values"] if images else []
            expected.append({"ids": ids, "mask": mask,
                             "images": [np.asarray(p).transpose(1, 2, 0).astype(np.uint8).tobytes().hex() for p in pixels]})
    json.dump(expected, open(os.path.join(HERE, "expected.json"), "w"))
    for extra in ("chat_template.jinja", "special_tokens_map.json"):
        if os.path.exists(os.path.join(model, extra)):
            os.remove(os.path.join(model, extra))


if __name__ == "__main__":
    main()

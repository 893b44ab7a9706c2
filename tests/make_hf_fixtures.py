"""The tiny models of make_model_fixtures.py as Hugging Face directories, saved by transformers itself: what mpi_pretrained.c and others load.

    python tests/make_hf_fixtures.py tests/data/hf [NAME...]

needs torch and transformers. The weights are the formula's, so tests/data/model/NAME.json says what each computes; the directories in half precision carry
the loss of their rounded weights in expected.json, that with a scalar head its values.
"""
import json
import os
import shutil
import sys

import torch
import transformers

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


def multimodal(case):
    """The text model of a case inside of a model with a vision tower, and the tensors of multi-token prediction, which transformers drops."""
    text = build(CASES[case], torch.float32)
    name = type(text).__name__.replace("ForCausalLM", "")
    config = getattr(transformers, name + "Config")(text_config=text.config.to_dict(), tie_word_embeddings=text.config.tie_word_embeddings,
                                        vision_config=dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, out_hidden_size=20,
                                                           patch_size=2, num_position_embeddings=4))
    model = getattr(transformers, name + "ForConditionalGeneration")(config)
    own = dict(text.named_parameters())
    with torch.no_grad():
        for name, p in model.named_parameters():
            q = own.get(name.replace("model.language_model.", "model."))
            p.copy_(weight(name, tuple(p.shape)) if q is None else q)
    return model, {**model.state_dict(), "mtp.fc.weight": torch.zeros(3, 5)}


def main():
    torch.set_num_threads(1)
    root = sys.argv[1]
    os.makedirs(root, exist_ok=True)
    for name in sys.argv[2:] or CASES:
        save(build(CASES[name], torch.float32), root, name, **(FUSED if name == "qwen3_5_moe" else {}))
        if name in ("qwen3_5", "qwen3_5_moe"):
            model, state = multimodal(name)
            save(model, root, name + "_vl", state_dict=state, **FUSED)
        if name == "mixtral":
            save(build(CASES[name], torch.float32), root, "mixtral_fused", **FUSED)
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

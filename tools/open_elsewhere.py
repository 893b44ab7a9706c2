"""open_elsewhere.py DIRECTORY ANSWERS - open an exported model with transformers and do with it what dtrain-generate did.

A language model continues the prompts of dtrain-generate --greedy --jsonl: both continuations are printed, and their tokens must be the same. A reward
model (or a critic) scores the answers of dtrain-generate --score DIRECTORY --jsonl, one by one and as a padded batch: rewards must be the same but for
roundings of fp32. The exit status is 1 when they are not.
"""
import json
import sys

import torch
import transformers

directory, answers = sys.argv[1], [json.loads(line) for line in open(sys.argv[2])]


def load(cls):
    """Strictly: no tensor may be missing or left over."""
    model, loading = cls.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    assert not any(loading.values()), loading
    return model.eval()


def continues_alike():
    model, tokenizer = load(transformers.AutoModelForCausalLM), transformers.AutoTokenizer.from_pretrained(directory)
    same = True
    for answer in answers:
        prompt = torch.tensor([answer["prompt_ids"]])
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=answer["n_new_tokens"],
                             pad_token_id=0)[0, prompt.shape[1]:].tolist()
        print("transformers:", repr(tokenizer.decode(ids, skip_special_tokens=True)))
        print("dtrain:      ", repr(answer["text"]))
        same &= ids == answer["ids"]
    print("the same tokens" if same else "the tokens differ")
    return same


@torch.no_grad()
def scores_alike():
    model = load(transformers.AutoModelForSequenceClassification)
    assert model.config.num_labels == 1, model.config.num_labels
    pad = model.config.pad_token_id
    some = [a for a in answers if a["ids"][-1] != pad]  # transformers would take the last token for padding
    texts, ours = [a["prompt_ids"] + a["ids"] for a in some], [a["reward"] for a in some]
    found = {"one by one": [model(torch.tensor([t])).logits.item() for t in texts]}
    if pad is not None:
        longest = max(map(len, texts))
        found["as a batch"] = model(torch.tensor([t + [pad] * (longest - len(t)) for t in texts]),
                                    attention_mask=torch.tensor([[1] * len(t) + [0] * (longest - len(t)) for t in texts])).logits[:, 0].tolist()
    off = {how: max(abs(a - b) / max(1, abs(b)) for a, b in zip(rewards, ours)) for how, rewards in found.items()}
    print(f"{len(ours)} rewards, off by at most", ", ".join(f"{x:.1e} {how}" for how, x in off.items()), f"(pad_token_id: {pad})")
    return max(off.values()) < 1e-4


is_classifier = transformers.AutoConfig.from_pretrained(directory).architectures[0].endswith("ForSequenceClassification")
sys.exit(not (scores_alike() if is_classifier else continues_alike()))

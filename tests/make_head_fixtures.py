"""make_head_fixtures.py - creates tests/data/classify and tests/data/embed (a development tool: needs torch, transformers, sentence-transformers).

    python3 tests/make_head_fixtures.py [classify] [embed]

Records, models to start from, and trl.json (tests/trl_runs.py) with ten steps of transformers' classifiers and sentence-transformers' losses.
"""
import json
import random
import shutil
import sys

import torch
import trl_runs
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, Qwen2Config, Qwen2ForTokenClassification

LR, STEPS, BATCH = 1e-2, 10, 6
WORDS = "the of and a to in he was that it his her with as had for she not at but".split()
LABELS, TAGS = ["neg", "neutral", "pos"], ["B-LOC", "B-PER", "I-PER", "O"]
tokenizer = trl_runs.bytes_tokenizer()
random.seed(3)


def text(low, high):
    return " ".join(random.choice(WORDS) for _ in range(random.randint(low, high)))


def write_records(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return records


def folder(name):
    shutil.rmtree(trl_runs.DATA / name, ignore_errors=True)
    (trl_runs.DATA / name).mkdir()
    return trl_runs.DATA / name


def small(kind, config, path, **more):
    torch.manual_seed(5)
    sizes = dict(vocab_size=258, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                 max_position_embeddings=64, pad_token_id=257, bos_token_id=256, eos_token_id=256, initializer_range=0.2, tie_word_embeddings=False)
    kind(config(**sizes, **more)).save_pretrained(path)


def ten_steps(model, loss_of, data, prefix=""):
    """Losses, norms, and where the tensors went; loss_of(records) returns loss and accuracy."""
    start = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = trl_runs.adamw([model], LR)
    at, rows = 0, []
    for _ in range(STEPS):
        here = data[at:at + BATCH]  # the last step of an epoch has what is left
        at = at + BATCH if at + BATCH < len(data) else 0
        optimizer.zero_grad()
        loss, accuracy = loss_of(here)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        rows.append([trl_runs.digits(x) for x in (loss.item(), norm, accuracy)])
    moved = {prefix + k: v for k, v in trl_runs.moved(model, start).items()}
    return {"metrics": ["loss", "grad_norm", "accuracy"], "steps": rows, "moved": moved}


# ---- classify ------------------------------------------------------------------------------------------------------------------------------------
def padded(rows, value):
    n = max(map(len, rows))
    return torch.tensor([r + [value] * (n - len(r)) for r in rows])


def inputs(ids):
    return {"input_ids": padded(ids, 257), "attention_mask": padded([[1] * len(r) for r in ids], 0)}


def encode(r):
    return list((r["text"] if "text" in r else r["text_a"] + r["text_b"]).encode())


def of_one(model):
    def loss_of(records):
        out = model(**inputs([encode(r) for r in records]),
                    labels=torch.tensor([LABELS.index(r["label"]) if isinstance(r["label"], str) else r["label"] for r in records]))
        y = [LABELS.index(r["label"]) if isinstance(r["label"], str) else r["label"] for r in records]
        return out.loss, (out.logits.argmax(-1) == torch.tensor(y)).float().mean().item()
    return loss_of


def of_many(model):
    def loss_of(records):
        y = torch.tensor([[float(k in r["labels"]) for k in LABELS] for r in records])
        out = model(**inputs([encode(r) for r in records]), labels=y)
        return out.loss, ((out.logits > 0).float() == y).all(-1).float().mean().item()
    return loss_of


def of_number(model):
    def loss_of(records):
        return model(**inputs([encode(r) for r in records]), labels=torch.tensor([float(r["label"]) for r in records])).loss, None
    return loss_of


def of_words(model):
    def loss_of(records):
        ids, labels = [], []
        for r in records:
            ids.append([]), labels.append([])
            for i, (word, tag) in enumerate(zip(r["tokens"], r["ner_tags"])):
                new = list(((" " if i else "") + word).encode())
                ids[-1] += new
                labels[-1] += [TAGS.index(tag)] + [-100] * (len(new) - 1)
        y = padded(labels, -100)
        out = model(**inputs(ids), labels=y)
        return out.loss, (out.logits.argmax(-1) == y)[y >= 0].float().mean().item()
    return loss_of


def make_classify():
    here = folder("classify")
    n = range(23)
    data = {"single": [{"text": text(1, 8), "label": random.choice(LABELS)} for _ in n],
            "pair": [{"text_a": text(1, 5), "text_b": text(1, 5), "label": random.randint(0, 2)} for _ in n],
            "multi": [{"text": text(1, 8), "labels": random.sample(LABELS, random.randint(0, 3))} for _ in n],
            "regression": [{"text": text(1, 8), "label": round(random.random() * 4 - 2, 3)} for _ in n],
            "tokens": [{"tokens": (w := text(1, 7).split()), "ner_tags": [random.choice(TAGS) for _ in w]} for _ in n]}
    for name, records in data.items():
        write_records(here / f"{name}.jsonl", records)
    ids = dict(id2label=dict(enumerate(LABELS)), label2id={k: i for i, k in enumerate(LABELS)})
    small(LlamaForSequenceClassification, LlamaConfig, here / "sequence", **ids)
    small(LlamaForSequenceClassification, LlamaConfig, here / "number", num_labels=1)
    small(Qwen2ForTokenClassification, Qwen2Config, here / "words", id2label=dict(enumerate(TAGS)), label2id={k: i for i, k in enumerate(TAGS)},
          classifier_dropout=0.0)
    torch.manual_seed(6)
    words = Qwen2ForTokenClassification.from_pretrained(here / "words")
    words.score.bias.data.normal_(0, 0.2)
    words.save_pretrained(here / "words")
    runs = []
    for name, start, kind, loss, problem in [("single", "sequence", LlamaForSequenceClassification, of_one, "single_label_classification"),
                                             ("pair", "sequence", LlamaForSequenceClassification, of_one, "single_label_classification"),
                                             ("multi", "sequence", LlamaForSequenceClassification, of_many, "multi_label_classification"),
                                             ("regression", "number", LlamaForSequenceClassification, of_number, "regression"),
                                             ("tokens", "words", Qwen2ForTokenClassification, of_words, None)]:
        model = kind.from_pretrained(here / start, dtype=torch.float32).eval()
        model.config.problem_type = problem
        keys = "batch.train_batch_size=6"
        runs.append({"name": f"{len(runs) + 1} {name}", "keys": keys, "start": f"classify/{start}", "data": name} | ten_steps(model, loss(model), data[name]))
        print(runs[-1]["name"], [row[0] for row in runs[-1]["steps"]])
    trl_runs.write(here / "trl.json", runs)


# ---- embed ---------------------------------------------------------------------------------------------------------------------------------------
def make_embed():
    from sentence_transformers import SentenceTransformer, losses, models
    here = folder("embed")
    data = write_records(here / "texts.jsonl",
                         [{"query": text(1, 5), "positive": text(1, 6), "negatives": [text(3, 4), text(1, 5)]} for _ in range(23)])
    pairs = write_records(here / "pairs.jsonl",
                          [{"anchor": text(1, 5), "positive": text(1, 6)} | ({"instruction": "find: "} if i % 2 else {}) for i in range(23)])
    small(LlamaForCausalLM, LlamaConfig, here / "start")
    tokenizer.save_pretrained(here / "start")
    runs = []
    for pooling, scale, dims, weights, name in [("last", 20, "", "", "texts"), ("mean", 20, "", "", "texts"), ("cls", 5, "", "", "pairs"),
                                                ("mean", 20, "16,8,4", "", "pairs"), ("last", 10, "4,16", "0.5,2", "texts")]:
        of = {"last": "lasttoken"}.get(pooling, pooling)
        model = SentenceTransformer(modules=[models.Transformer(str(here / "start")), models.Pooling(16, pooling_mode=of)], device="cpu").eval()
        loss = losses.MultipleNegativesRankingLoss(model, scale=scale)
        if dims:
            loss = losses.MatryoshkaLoss(model, loss, [int(d) for d in dims.split(",")], [float(w) for w in weights.split(",")] if weights else None)

        def loss_of(records):
            columns = ([[r.get("instruction", "") + r.get("query", r.get("anchor")) for r in records], [r["positive"] for r in records]]
                       + [[r["negatives"][k] for r in records] for k in range(len(records[0].get("negatives", [])))])
            features = [inputs([list(t.encode()) for t in column]) for column in columns]
            with torch.no_grad():
                q, *others = (torch.nn.functional.normalize(model(dict(f))["sentence_embedding"][:, :int(dims.split(",")[-1]) if dims else None]) for f in features)
                accuracy = ((q @ torch.cat(others).T).argmax(-1) == torch.arange(len(records))).float().mean().item()
            return loss(features, None), accuracy
        keys = f"batch.train_batch_size=6 embed.pooling={pooling} embed.scale={scale}"
        keys += f" embed.matryoshka_dims={dims}" if dims else ""
        keys += f" embed.matryoshka_weights={weights}" if weights else ""
        plain = model[0].auto_model if hasattr(model[0], "auto_model") else model[0].model
        runs.append({"name": f"{len(runs) + 1} {pooling}", "keys": keys, "start": "embed/start", "data": name}
                    | ten_steps(plain, loss_of, data if name == "texts" else pairs, "model."))
        if pooling == "cls":  # of equal first tokens; and a token that attends to itself alone has no gradients of queries and keys
            runs[-1]["steps"] = [[*row[:2], None] for row in runs[-1]["steps"]]
            runs[-1]["moved"] = {k: v for k, v in runs[-1]["moved"].items() if "q_proj" not in k and "k_proj" not in k}
        print(runs[-1]["name"], [row[0] for row in runs[-1]["steps"]])
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (here / "start" / name).unlink()
    trl_runs.write(here / "trl.json", runs)


for part in sys.argv[1:] or ["classify", "embed"]:
    {"classify": make_classify, "embed": make_embed}[part]()

"""make_auto_tokenizer_fixtures.py - directories of tokenizers whose files disagree, and the results of AutoTokenizer of transformers 5.

    python3 tests/make_auto_tokenizer_fixtures.py [CASES [SEED]] > tests/data/tokenizer/auto.json

Needs transformers and tokenizers. Each case samples a tokenizer.json (of five kinds), tokenizer_config.json, special_tokens_map.json, added_tokens.json
and the model_type of config.json: which tokens each names, with which flags, as texts or as objects. The answers are the ids of texts without and with
what the tokenizer puts around them, the size of the vocabulary, and bos and eos. "families" are the ids of one text for every model type that dtrain
reads (except Gemma's, which have stages of their own) and each class that tokenizer_config.json may name. The fixture has 80 cases.
"""
import json
import os
import random
import re
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

CORPUS = ["the model reads the text of the files", "hello there, the 12 other tokens", "a token of the vocabulary is the last one",
          "def f(x):\n    return x + 12\n", "Été à la mer, où l'été"]
GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MARKS = GPT4.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "[PAD]", "<tool>", "é", "NaN", "the", "<x y>", "<|a|>", "<|ab|>", "ÉT",
          " w", "<image>", "e\u0301q"]
WORDS = "हिन्दी में हिन्दी 1234 किताब, the\n\nfiles 1234"
PIECES = [" ", "  ", "\n", "hello", "the", "a b", "Été 12", "e\u0301", "日本", " x"]
CLASSES = [None, "PreTrainedTokenizerFast", "TokenizersBackend", "GPT2Tokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast",
           "LlamaTokenizer", "LlamaTokenizerFast", "NobodysTokenizer", "PreTrainedTokenizer"]
FITTING = {"gpt2": (["GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast"], ["gpt2"]),
           "qwen": (["Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast"], ["qwen2", "qwen3"]),
           "llama3": (["PreTrainedTokenizerFast"], ["llama"]),
           "llama2": (["LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast"], ["llama", "mistral"]),
           "metaspace": (["LlamaTokenizer", "PreTrainedTokenizerFast"], ["llama", "mistral"])}


def sentencepiece(kind):
    byte_tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=320, special_tokens=byte_tokens, show_progress=False))
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if kind == "llama2":
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return dict(json.loads(t.to_str()), model=json.loads(trained.to_str())["model"], added_tokens=[])


def byte_level(kind):
    t = Tokenizer(models.BPE())
    if kind == "qwen":
        t.normalizer = normalizers.NFC()
    pattern = {"qwen": GPT4, "marks": MARKS}.get(kind, GPT4.replace(r"\p{N}|", r"\p{N}{1,3}|"))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if kind == "gpt2" else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(CORPUS + [WORDS] * (kind == "marks"), trainers.BpeTrainer(vocab_size=310 if kind == "marks" else 290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                                      special_tokens=["<|endoftext|>"] if kind == "gpt2" else []))
    made = dict(json.loads(t.to_str()), added_tokens=[])
    made["model"]["ignore_merges"] = kind == "llama3"
    return made


BASES = {kind: sentencepiece(kind) if kind in ("llama2", "metaspace") else byte_level(kind) for kind in [*FITTING, "marks"]}


class Case:
    """The files of one directory, by name."""

    def __init__(self, r):
        self.r, self.kind = r, r.choice(list(FITTING))
        self.vocab = BASES[self.kind]["model"]["vocab"]
        self.tokenizer, self.files = {}, {}
        self.draw_own()
        self.new = [t for t in TOKENS if t not in self.own]
        r.shuffle(self.new)
        fits = r.random() < .75
        classes, types = FITTING[self.kind]
        self.draw_config(r.choice(classes if fits else CLASSES))
        if r.random() < .4:
            self.draw_map()
        if r.random() < .3:
            self.draw_added()
        model_type = r.choice(types if r.random() < .75 else [None, "llama", "qwen2", "qwen3", "gpt2", "mistral"])
        if model_type:
            self.files["config.json"] = {"model_type": model_type}

    def chance(self, p):
        return self.r.random() < p

    def flags(self, content):
        special = self.chance(.6)
        return dict(content=content, lstrip=self.chance(.2), rstrip=self.chance(.2), single_word=self.chance(.15),
                    normalized=self.chance(.3 if special else .7), special=special)

    def draw_own(self):
        self.own = self.r.sample(TOKENS, self.r.randint(0, 5))
        first = {"gpt2": ["<|endoftext|>"], "llama2": ["<unk>", "<s>", "</s>"], "metaspace": ["<unk>", "<s>", "</s>"]}.get(self.kind, [])
        self.own = first + [t for t in self.own if t not in first]
        self.end, entries = len(self.vocab), []
        for t in self.own:
            entries.append(dict(id=self.vocab.get(t, self.end), **self.flags(t)))
            self.end += t not in self.vocab
        self.tokenizer["added_tokens"] = sorted(entries, key=lambda e: e["id"])
        if self.own and self.chance(.6):
            t = self.r.choice(self.own)
            i = next(e["id"] for e in entries if e["content"] == t)
            single = [{"SpecialToken": {"id": t, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
            self.tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
                                                "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]}}}
        if self.chance(.1):
            self.tokenizer["padding"] = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
                                         "pad_token": self.r.choice(["[PAD]", "</s>"])}

    def some(self):
        return self.r.choice(self.own if self.own and self.chance(.6) else self.new)

    def token(self):
        if self.chance(.7):
            return self.some()
        made = dict(self.flags(self.some()), __type="AddedToken")
        if self.chance(.5):
            del made["special"]
        return made

    def draw_config(self, name):
        c = {"tokenizer_class": name} if name else {}
        for key, p in dict(bos_token=.6, eos_token=.7, unk_token=.3, pad_token=.5, sep_token=.1, mask_token=.1, image_token=.1).items():
            if self.chance(p):
                c[key] = None if self.chance(.1) and key != "image_token" else self.token()
        for key, p in dict(add_bos_token=.3, add_eos_token=.2, add_prefix_space=.2, legacy=.15).items():
            if self.chance(p):
                c[key] = self.chance(.5)
        if self.chance(.05):
            c["split_special_tokens"] = True
        for key in ("additional_special_tokens", "extra_special_tokens"):
            if self.chance(.3):
                c[key] = [self.token() for _ in range(self.r.randint(0, 3))]
        if self.chance(.07):
            c["extra_special_tokens"] = {"boi_token": self.some(), "named": self.some()}
        if self.chance(.5):
            c["added_tokens_decoder"] = self.decoder()
        if self.chance(.9):
            self.files["tokenizer_config.json"] = c

    def decoder(self):
        made, end = {}, self.end
        for e in self.tokenizer["added_tokens"]:
            if self.chance(.8):
                made[str(e["id"])] = self.flags(e["content"]) if self.chance(.3) else {k: v for k, v in e.items() if k != "id"}
        for t in self.new[:self.r.randint(0, 4)]:
            if t not in self.vocab and self.chance(.15):
                end += self.r.randint(1, 5)
            made[str(self.vocab.get(t, end))] = self.flags(t)
            end += t not in self.vocab
        return made

    def draw_map(self):
        m = {}
        for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
            if self.chance(.5):
                m[key] = self.some() if self.chance(.6) else {k: v for k, v in self.flags(self.some()).items() if k != "special"}
        for key, p in dict(additional_special_tokens=.3, extra_special_tokens=.2).items():
            if self.chance(p):
                m[key] = [self.some(), self.some()]
        self.files["special_tokens_map.json"] = m

    def draw_added(self):
        made, end = {}, self.end
        for t in self.new[:self.r.randint(1, 3)]:
            made[t] = self.vocab.get(t, end)
            end += t not in self.vocab
        self.files["added_tokens.json"] = made

    def texts(self):
        return ["".join(self.r.choice(TOKENS if self.chance(.5) else PIECES) for _ in range(self.r.randint(1, 7))) for _ in range(6)]


def answers(case, texts):
    with tempfile.TemporaryDirectory() as folder:
        for name, value in dict(case.files, **{"tokenizer.json": dict(BASES[case.kind], **case.tokenizer)}).items():
            with open(os.path.join(folder, name), "w") as f:
                json.dump(value, f)
        t = AutoTokenizer.from_pretrained(folder)
        return dict(base=case.kind, tokenizer=case.tokenizer, files=case.files, vocab_size=max(t.get_vocab().values()) + 1,
                    bos=t.bos_token_id if t.bos_token else None, eos=t.eos_token_id if t.eos_token else None,
                    texts=[[x, t(x, add_special_tokens=False)["input_ids"], t(x)["input_ids"]] for x in texts])


class CodeLlama:
    """Code Llama's files as published, whose stages are older than those of its class. A text with <FILL_ME> would change the tokenizer for the next."""

    def __init__(self, more):
        own = ["<unk>", "<s>", "</s>"]
        config = dict(tokenizer_class="CodeLlamaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>", **more)
        for name, text in dict(prefix="PRE", middle="MID", suffix="SUF", eot="EOT").items():
            config[name + "_token"] = f"▁<{text}>"
        config["fill_token"] = "<FILL_ME>"
        flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        self.kind, self.tokenizer = "llama2", {"added_tokens": [dict(id=i, content=t, **flags) for i, t in enumerate(own)]}
        single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        self.tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
                                            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
        self.files = {"tokenizer_config.json": config, "config.json": {"model_type": "llama"}}

    def texts(self):
        return ["    return x", " the files", "the text", "<s>  the text", "</s>hello\n", "▁<PRE>the files▁<MID> x"]


class Family:
    """A directory without special tokens."""

    def __init__(self, model_type, name):
        self.kind, self.tokenizer = "marks", {"added_tokens": []}
        self.files = {"tokenizer_config.json": {"tokenizer_class": name} if name else {}, "config.json": {"model_type": model_type}}


def families():
    """[ids, [[model type, class], ...]] of each result."""
    types = re.findall(r"TYPE\((\w+)\)", open(os.path.join(os.path.dirname(__file__), "../include/dtrain/config/model_types.h")).read())
    types += ["llava", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "internvl", "internlm2"]
    found = {}
    for model_type in types:
        for name in None, "TokenizersBackend", "GPT2Tokenizer", "Qwen2Tokenizer", "LlamaTokenizerFast":
            if not model_type.startswith("gemma"):
                case = answers(Family(model_type, name), [WORDS])
                found.setdefault(str(case["texts"][0][1]), []).append([model_type, name or ""])
    return [[json.loads(ids), of] for ids, of in found.items()]


def main():
    n, seed = (int(a) for a in (sys.argv[1:] + ["60", "1"][len(sys.argv) - 1:]))
    cases = []
    for i in range(n):
        case = Case(random.Random(seed * 100003 + i))
        cases.append(answers(case, case.texts()))
    for more in {}, {"legacy": True}, {"add_prefix_space": False}:
        case = CodeLlama(more)
        cases.append(answers(case, case.texts()))
    print('{"bases": {')
    print(",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, separators=(',', ':'))}" for k, v in BASES.items()))
    print('}, "cases": [')
    print(",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases))
    print('], "text": ' + json.dumps(WORDS, ensure_ascii=False) + ', "families": [')
    print(",\n".join(json.dumps(f, separators=(",", ":")) for f in families()))
    print("]}")


if __name__ == "__main__":
    main()

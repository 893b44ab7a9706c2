"""make_spm_fixtures.py - directories with a tokenizer.model and no tokenizer.json, and the results of AutoTokenizer of transformers 5.

    python3 tests/make_spm_fixtures.py [CASES [SEED]] > tests/data/tokenizer/spm.json

Needs transformers, tokenizers, sentencepiece and protobuf. The models are trained here: BPE and unigram, with and without tokens of bytes, normalisation,
spaces at the start of a text, pieces that are defined by the user and control pieces. A case is a model and the files next to it. The answers are as in
make_auto_tokenizer_fixtures.py. The fixture has 60 cases.
"""
import base64
import io
import json
import os
import random
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
import sentencepiece
from transformers import AutoTokenizer

TEXTS = ["the model reads the text of the files, the 12 other tokens and the last one", "hello there, a token of the vocabulary is the last one",
         "def f(x):\n    return x + 12\n", "Été à la mer, où l'été", "日本語 のテキスト", "ﬁne １２ ｆｏｒ the files"]
RULES = "FB01\t66 69\nFF11\t31\nFF12\t32\nFF46\t66\nFF4F\t6F\nFF52\t72\n65 301\tE9\n9\t20\nA0\t20\nAD\t\nD A\tA\n"
PIECES = [" ", "  ", "   ", "\n", "the", "hello", "a b", "Été", "e\u0301", "\u0301", "日本", "語", "ﬁ", "１２", " x", "▁", "▁▁", "\t", "\u00a0", "\u00ad", "\r\n",
          "<tool>", "def", "🙂", "<s>", "</s>", "<unk>", "<ctl>", "x + 12", "<|im_end|>", "\u200d", "q"]
TOKENS = ["<s>", "</s>", "<unk>", "<ctl>", "<|im_end|>", "[PAD]", "the", "<tool>"]


def train(kind, **options):
    out, rules = io.BytesIO(), None
    if options.pop("rules", False):
        rules = tempfile.NamedTemporaryFile("w", suffix=".tsv", delete=False)
        rules.write(RULES)
        rules.close()
        options["normalization_rule_tsv"] = rules.name
    else:
        options.setdefault("normalization_rule_name", "identity")
    size = dict(bpe=150, unigram=110)[kind] + 256 * options.get("byte_fallback", False)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS * 20), model_writer=out, model_type=kind, vocab_size=size, minloglevel=2,
                                             num_threads=1, hard_vocab_limit=False, **options)
    if rules:
        os.unlink(rules.name)
    return out.getvalue()


MODELS = dict(llama=lambda: train("bpe", byte_fallback=True, remove_extra_whitespaces=False),
              plain=lambda: train("bpe", byte_fallback=True, remove_extra_whitespaces=False, add_dummy_prefix=False, control_symbols=["<ctl>"]),
              user=lambda: train("bpe", byte_fallback=True, user_defined_symbols=["<tool>", "  ", "the"], remove_extra_whitespaces=False),
              rules=lambda: train("bpe", rules=True),
              names=lambda: train("bpe", byte_fallback=True, unk_id=2, bos_id=0, eos_id=1, bos_piece="<ctl>", eos_piece="<end>", pad_id=3),
              unigram=lambda: train("unigram", remove_extra_whitespaces=False),
              bytes=lambda: train("unigram", byte_fallback=True, rules=True),
              digits=lambda: train("unigram", byte_fallback=True, split_digits=True, user_defined_symbols=["<tool>"], add_dummy_prefix=False))


def added(r, text):
    special = r.random() < .6
    return dict(content=text, lstrip=r.random() < .2, rstrip=r.random() < .2, single_word=r.random() < .1, normalized=r.random() < .4, special=special)


def draw(r, models):
    kind = r.choice(list(models))
    pieces = sentencepiece.SentencePieceProcessor(model_proto=models[kind])
    files, config = {}, {}
    llama = "unigram" not in kind and kind not in ("bytes", "digits")
    name = r.choice([None, "PreTrainedTokenizer", "TokenizersBackend", "NobodysTokenizer"] + ["LlamaTokenizer", "LlamaTokenizerFast"] * 2 * llama)
    if name:
        config["tokenizer_class"] = name
    for key, p in dict(add_bos_token=.6, add_eos_token=.3, legacy=.5, add_prefix_space=.1).items():
        if r.random() < p:
            config[key] = r.random() < .6
    for key, tokens in dict(bos_token=["<s>", "<ctl>"], eos_token=["</s>", "<|im_end|>", "[PAD]"], unk_token=["<unk>", "<tool>"], pad_token=["[PAD]", "<ctl>", "</s>"]).items():
        if r.random() < .5:
            config[key] = r.choice(tokens)
    if r.random() < .5:
        ids = {pieces.piece_to_id(t): t for t in TOKENS if pieces.piece_to_id(t) != pieces.unk_id() or t == "<unk>"}
        given = {str(i): added(r, t) for i, t in ids.items() if r.random() < .6}
        if r.random() < .3:
            given[str(pieces.get_piece_size())] = added(r, "<|im_end|>")
        config["added_tokens_decoder"] = given
    if r.random() < .3:
        config["additional_special_tokens"] = r.sample(["<ctl>", "<|im_end|>", "<tool>"], r.randint(0, 2))
    if config or r.random() < .7:
        files["tokenizer_config.json"] = config
    if r.random() < .4:
        files["special_tokens_map.json"] = {k: r.choice([t, added(r, t)]) for k, t in dict(bos_token="<s>", eos_token="</s>").items()}
    if r.random() < .2:
        files["added_tokens.json"] = {"<|im_end|>": pieces.get_piece_size()}
    kinds = ["mistral", "internlm2"] + ["llama"] * (2 * llama)
    files["config.json"] = dict(model_type=r.choice(kinds))
    return dict(model=kind, files=files)


def answer(case, models, r):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
            f.write(models[case["model"]])
        for name, value in case["files"].items():
            with open(os.path.join(folder, name), "w") as f:
                json.dump(value, f)
        t = AutoTokenizer.from_pretrained(folder)
        texts = TEXTS[:2] + ["", "  a  b "] + ["".join(r.choice(PIECES) for _ in range(r.randint(1, 9))) for _ in range(5)]
        case["texts"] = [[x, t(x, add_special_tokens=False)["input_ids"], t(x)["input_ids"], t.decode(t(x, add_special_tokens=False)["input_ids"])] for x in texts]
        case.update(vocab_size=max(t.get_vocab().values()) + 1, bos=t.bos_token_id, eos=t.eos_token_id)
    return case


def main(n=60, seed=5):
    r = random.Random(seed)
    models = {k: make() for k, make in MODELS.items()}
    cases, refused = [], 0
    while len(cases) < n:
        case = draw(r, models)
        try:
            cases.append(answer(case, models, r))
        except Exception as e:  # a token that AutoTokenizer refuses
            refused += 1
            print(type(e).__name__, e, file=sys.stderr)
    print(f"{refused} refused", file=sys.stderr)
    json.dump(dict(models={k: base64.b64encode(v).decode() for k, v in models.items()}, cases=cases), sys.stdout, ensure_ascii=False, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Small tokenizers of every family, and the results of Hugging Face's tokenizers for texts: the expectations of test_tokenizer.c.

    python tests/make_tokenizer_fixtures.py tests/data/tokenizer [NAME...]

needs tokenizers and numpy; nothing else in the tree does. cases.json holds texts (as hexadecimal bytes, for some are not UTF-8). NAME/tokenizer.json is a
tokenizer trained on documents of a formula that the test repeats (tests/tokenizer_corpus.h), NAME/expected.json what it makes of the cases:
  ids, wrapped     without and with what the post-processor adds
  text, visible    decoded again, with and without special tokens
  blocks           for each 100 documents of the formula: checksums of all ids, and of all decoded bytes
small.json holds tokenizers of a few tokens, each with texts, their ids, and the decoded texts: places where stages meet.
"""
import json
import os
import sys

import numpy as np
from fixtures import mix64
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

N_BLOCKS, BLOCK, TRAIN_FROM = 45, 100, 1000000


WORDS = (
    "the of and to in is hello world Hello WORLD don't I'll we've it's they're I'm he'd can't 'S 'LL I'Ve na\u00efve cafe\u0301 \u00fcber "
    "stra\u00dfe \u00e9lan S\u00e3o a\u00f1o A\u030angstro\u0308m \u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 \u0420\u043e\u0441"
    "\u0441\u0438\u044f \u0435\u0449\u0451 \u03b5\u03af\u03bd\u03b1\u03b9 \u0395\u03bb\u03bb\u03ac\u03b4\u03b1 \u03ba\u03b1\u03b9 \u0627"
    "\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064a\u0643\u0645 \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u05e2\u05d5"
    "\u05dc\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0939\u093f\u0928\u094d\u0926\u0940 \u0e2a"
    "\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0e1b\u0e23\u0e30\u0e40\u0e17\u0e28\u0e44\u0e17\u0e22 \u4f60\u597d \u4e16\u754c \u4e2d\u6587 \u65e5"
    "\u672c\u8a9e \u3053\u3093\u306b\u3061\u306f \u30ab\u30bf\u30ab\u30ca \uc548\ub155\ud558\uc138\uc694 \ud55c\uad6d\uc5b4 int main(void) "
    "return x; printf(\"%d\\n\", i); #include <stdio.h> def f(x): self._value += 1 == != -> // /* */ 3.14159 2024-01-31 1,000,000 0xFF "
    "12345678 https://example.org/a?b=c&d=1#e user@example.com ... --- !!! ?! :) <br/> {} [] () @#$% \U0001f600 \U0001f468\u200d\U0001f469"
    "\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f44d\U0001f3fd \ufb01 \u00b2 \u00bd \u2167 \u2122 \u212b \u2126"
).split(" ")
RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0xA1, 0x2FF), (0x300, 0x36F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x621, 0x64A), (0x64B, 0x652),
    (0x905, 0x939), (0x93E, 0x94D), (0xE01, 0xE3A), (0xE40, 0xE4E), (0x1100, 0x1175), (0x11A8, 0x11C2), (0x1E00, 0x1EFF), (0x2000, 0x206F),
    (0x20A0, 0x20B5), (0x2100, 0x214E), (0x2190, 0x22FF), (0x2500, 0x257F), (0x3000, 0x303F), (0x3041, 0x309F), (0x30A0, 0x30FF),
    (0x4E00, 0x9FA5), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xFB00, 0xFB06), (0xFF01, 0xFF5E), (0x1D400, 0x1D433), (0x1F300, 0x1F5FF),
    (0x1F600, 0x1F64F), (0x0, 0x1F), (0x7F, 0xA0),
]
SPECIAL = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|begin_of_text|>", "<mask>", "[INST]", "hello", "keep", "x1"]
MARKS = ".,;:!?-'\"/\r\n"


def document(d):
    """Document d: pieces chosen by the numbers mix64(d * 2^32), mix64(d * 2^32 + 1), ... until there are 50 + d % 600 characters."""
    k, out, size, n = d << 32, [], 0, 50 + d % 600
    while size < n:
        r = mix64(k)
        k += 1
        kind, r = r % 16, r >> 8
        low, high = RANGES[(r & 0xFF) % len(RANGES)]
        if kind < 6:
            s = (" " if r & 1 else "") + WORDS[(r >> 1) % len(WORDS)]
        elif kind < 8:
            s = chr(low + (r >> 8) % (high - low + 1))
        elif kind == 8:
            s = " " * (1 + r % 9)
        elif kind == 9:
            s = "\n" * (1 + r % 3)
        elif kind == 10:
            s = "\t" * (1 + r % 3)
        elif kind == 11:
            s = str(r % 10 ** (1 + (r >> 20) % 7))
        elif kind == 12:
            s = " " + "".join(chr(97 + (r >> 8 * i) % 26) for i in range(3))
        elif kind == 13:
            s = "".join(chr(low + (r >> (11 + 4 * i)) % (high - low + 1)) for i in range(1 + (r >> 8) % 8))
        elif kind == 14:
            s = MARKS[r % len(MARKS)]
        else:
            s = SPECIAL[(r >> 8) % len(SPECIAL)] if r % 8 == 0 else "\r\n" if r % 8 == 1 else " \n"
        out.append(s)
        size += len(s)
    return "".join(out)


CASES = [b"", b" ", b"  ", b"a", b" a", b"a ", b"Hello, world!", b" Hello  world ", b"\n", b"\n\n", b"a\n\nb", b"a\n \n b", b"\t\tx\t", b"a\r\nb\r\n",
         b"I'm, you're, we'LL, they'Ve 'tis it's's", b"1 12 123 1234 12345 3.14 1e-9 0x1F", b"the cat\xe2\x80\x99s", b"    if (x) {\n        return;\n    }\n",
         b"def f(x):\n\treturn x**2  # square\n", b"\x00\x01\x02\x7f", b"\xff", b"a\xc3", b"\xe2\x82 \xe2\x82\xac", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
         b"ok \xc0\xaf\xe0\x80\x80 \xf0\x9f\x98 end", b"<s>", b"<s>a</s>", b"a<s> b </s> c", b"a<mask>b", b"a <mask> b", b"a  <mask>  b <mask>",
         b"hello hellos xhello hello. (hello)", b"keep keep  keepkeep", b"x1 x12 ax1 x1\n x1", b"<|endoftext|><|endoftext|>", b"<|endoftext|> <|endoftext",
         b"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", b"[INST] x [/INST] y</s>", b"<unk>", b"<0x0A>", b"a\xe2\x96\x81b", b"\xe2\x96\x81",
         b"\xe2\x96\x81\xe2\x96\x81 x", b"   \xe2\x96\x81", b"<|begin_of_text|>x", b"\xef\xbb\xbfbom", b"\xc2\xa0\xe3\x80\x80\xe2\x80\xa8\xe1\xa0\x8e x"]
CASES += [s.encode() for s in (
    "cafe\u0301 caf\u00e9 \u1e9b\u0323 \u212b \u2126 \ufb01 \u00b2 \u3392", "\u0130I\u0131i \u03a3\u03c3\u03c2 STRASSE \u1e9e",
    "\u0418\u0306 \u0419 \u0438\u0306\u0439", "\u1112\u1161\u11ab \ud55c \uac00\u11a8", "\u304b\u3099\u304c \u30d5\u309a",
    "\u0915\u094d\u0937 \u0928\u093f", "\u0e01\u0e33 \u0e44\u0e17\u0e22", "\u0627\u0644\u0639\u064e\u0631\u064e\u0628\u0650\u064a\u0651\u0629",
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 123",
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f4\U000e0067\U000e0062\U000e007f",
    "\U0001f44d\U0001f3fd\u2764\ufe0f", "\u2014\u2018q\u2019\u2026", "\u0301x \u0301\u0301", "a\u0301\u0323 a\u0323\u0301", "\uff21\uff22\uff11\uff12",
    "\u0660\u0661\u0662 \u0967\u0968 \u2160 \u00bd \u2460", "\u0600\u06dd", "\U00010300\U0001d400\U0001d7ce", "x\u00adx\u200bx\u2060x\ufeffx",
)]
CASES += [b" " * 40 + b"x" + b" " * 7, b"a" * 300, b"ab " * 50 + b"\n" * 20, b"1" * 50, b"-" * 30 + b"=" * 70 + b"\n", ("\u4e2d" * 60).encode()]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
NUMBERED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|"
            "\\s+(?!\\S)|\\s+")
SPACE = "\u2581"


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def special(text, **flags):
    return AddedToken(text, special=True, normalized=flags.pop("normalized", False), **flags)


def bos(name):
    return lambda t: processors.TemplateProcessing(single=f"{name} $A", pair=f"{name} $A {name} $B", special_tokens=[(name, t.token_to_id(name))])


SP_DECODER = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
SP_MODEL = dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
SP_FIRST = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
FLAGGED = [special("<mask>", lstrip=True), AddedToken("hello", single_word=True, normalized=False), AddedToken("keep", rstrip=True, normalized=True),
           AddedToken("x1", single_word=True, lstrip=True, rstrip=True, normalized=True), AddedToken("[INST]", normalized=False)]
# name: model options, normalizer, pre-tokenizer, decoder, post-processor, tokens first in the vocabulary, tokens added afterwards
FAMILIES = {
    "gpt2": dict(pre=byte_level(regex=True), dec=decoders.ByteLevel(), post=lambda t: processors.ByteLevel(trim_offsets=False),
                 add=[special("<|endoftext|>")], strings=True),
    "roberta": dict(pre=byte_level(prefix=True, regex=True), dec=decoders.ByteLevel(), first=["<s>", "<pad>", "</s>", "<unk>"],
                    add=[special("<s>"), special("</s>"), special("<unk>", normalized=True)] + FLAGGED,
                    post=lambda t: processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))),
    "llama3": dict(model=dict(ignore_merges=True), pre=pre_tokenizers.Sequence([split(NUMBERED % r"\p{N}{1,3}"), byte_level()]), dec=decoders.ByteLevel(),
                   add=[special("<|begin_of_text|>"), special("<|endoftext|>")], whole=["\u0120hello", "12", "\u0120user", "don", "aaaa"],
                   post=lambda t: processors.Sequence([processors.ByteLevel(trim_offsets=False), bos("<|begin_of_text|>")(t)])),
    "qwen2": dict(norm=normalizers.NFC(), pre=pre_tokenizers.Sequence([split(NUMBERED % r"\p{N}"), byte_level()]), dec=decoders.ByteLevel(),
                  post=lambda t: processors.ByteLevel(trim_offsets=False),
                  add=[special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")] + FLAGGED),
    "tekken": dict(model=dict(ignore_merges=True), pre=pre_tokenizers.Sequence([split(TEKKEN), byte_level()]), dec=decoders.ByteLevel(), first=["<unk>", "<s>", "</s>"],
                   add=[special("<unk>"), special("<s>"), special("</s>"), special("[INST]")], post=bos("<s>")),
    "deepseek": dict(norm=normalizers.Sequence([]), dec=decoders.ByteLevel(), post=lambda t: processors.ByteLevel(trim_offsets=False), add=[special("<|endoftext|>")],
                     pre=pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK), byte_level()])),
    "smollm": dict(pre=pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level(regex=True)]), dec=decoders.ByteLevel(),
                   first=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], add=[special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")]),
    "falcon": dict(pre=pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), byte_level(regex=True), pre_tokenizers.Digits(False),
                                                split("[0-9][0-9][0-9]")]), dec=decoders.ByteLevel(), add=[special("<|endoftext|>")]),
    "llama2": dict(model=SP_MODEL, norm=normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]), dec=SP_DECODER, first=SP_FIRST,
                   add=[special("<unk>"), special("<s>"), special("</s>")], post=bos("<s>")),
    "llama2_flags": dict(model=SP_MODEL, norm=normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]), dec=SP_DECODER,
                         first=SP_FIRST, add=[special("<unk>", normalized=True), special("<s>", normalized=True), special("</s>")] + FLAGGED, post=bos("<s>")),
    "mistral": dict(model=SP_MODEL, pre=pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False), dec=SP_DECODER, first=SP_FIRST,
                    add=[special("<unk>"), special("<s>"), special("</s>"), special("[INST]")], post=bos("<s>")),
    "gemma": dict(model=SP_MODEL, norm=normalizers.Replace(" ", SPACE), pre=pre_tokenizers.Split(" ", "merged_with_previous"), whole_texts=True,
                  dec=decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]),
                  first=["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"] + [f"<0x{b:02X}>" for b in range(256)],
                  add=[special(t) for t in ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>")]
                  + [AddedToken(t, normalized=False) for t in ("\n", "\n\n", "\n\n\n", SPACE * 2, SPACE * 3, SPACE * 4, "\t", "<table>")], post=bos("<bos>")),
    "metaspace": dict(model=dict(unk_token="<unk>", fuse_unk=True), pre=pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=True),
                      dec=decoders.Metaspace(SPACE, prepend_scheme="always", split=True), first=["<unk>", "<s>", "</s>"], add=[special("<s>"), special("</s>")],
                      post=lambda t: processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B", special_tokens=[("<s>", 1), ("</s>", 2)])),
    "words": dict(model=dict(unk_token="<unk>", end_of_word_suffix="</w>"), norm=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()]),
                  pre=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous")]),
                  dec=decoders.BPEDecoder("</w>"), first=["<unk>"], add=[special("<unk>"), special("<s>")] + FLAGGED,
                  post=lambda t: processors.BertProcessing(("<s>", t.token_to_id("<s>")), ("<s>", t.token_to_id("<s>")))),
    "subwords": dict(model=dict(unk_token="<unk>", fuse_unk=True, continuing_subword_prefix="##"), first=["<unk>"], add=[special("<unk>")],
                     norm=normalizers.Sequence([normalizers.NFD(), normalizers.Replace(Regex(r"[\u0300-\u036f]+"), ""), normalizers.Replace("wor", "WOR")]),
                     pre=pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), split(r"[aeiou]", "merged_with_next"), pre_tokenizers.Split("t", "removed"),
                                                  pre_tokenizers.Split("l", "contiguous"), split(r"\d+", "removed", True)]), dec=None),
    "bare": dict(norm=normalizers.NFKD(), dec=decoders.Sequence([decoders.Replace(Regex("[xyz]"), "_"), decoders.Fuse()]), add=[AddedToken("keep me", normalized=True)]),
}


def train(name, family):
    t = Tokenizer(models.BPE(**family.get("model", {})))
    if family.get("norm"):
        t.normalizer = family["norm"]
    if family.get("pre"):
        t.pre_tokenizer = family["pre"]
    if family.get("dec"):
        t.decoder = family["dec"]
    is_bytes = "ByteLevel" in str(family.get("pre"))
    options = {k: v for k, v in family.get("model", {}).items() if k in ("end_of_word_suffix", "continuing_subword_prefix")}
    first = family.get("first", [])
    trainer = trainers.BpeTrainer(vocab_size=700 + len(first), special_tokens=first, show_progress=False, limit_alphabet=10000 if is_bytes else 250,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if is_bytes else [], max_token_length=24, **options)
    texts = [document(TRAIN_FROM + d).replace("\0", "") for d in range(1500)]
    if not family.get("pre") or family.get("whole_texts"):
        texts = [w for s in texts for w in s.replace(" ", "\x00 ").split("\x00")]  # nothing would be learned of whole documents
    t.train_from_iterator(texts, trainer)
    j = json.loads(t.to_str())
    j["added_tokens"] = []
    for word in family.get("whole", []):
        j["model"]["vocab"].setdefault(word, len(j["model"]["vocab"]))
    for k, v in family.get("model", {}).items():
        j["model"][k] = v
    t = Tokenizer.from_str(json.dumps(j))
    t.add_tokens(family.get("add", []))
    if family.get("post"):
        t.post_processor = family["post"](t)
    if family.get("strings"):  # merges as older files have them
        j = json.loads(t.to_str())
        j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
        return Tokenizer.from_str(json.dumps(j)), j
    return t, json.loads(t.to_str())


POWERS = np.array([mix64(i) for i in range(1 << 20)], dtype=np.uint64)


def checksum(values):
    """Sum of (value + 1) * mix64(place), modulo 2^64."""
    with np.errstate(over="ignore"):
        v = np.asarray(values, dtype=np.uint64) + np.uint64(1)
        return "%016x" % int((v * POWERS[: len(v)]).sum(dtype=np.uint64))


def decoding(j):
    """The same for decoding without special tokens: the reference does not know those for special that the normaliser changes; dtrain does."""
    j = json.loads(json.dumps(j))
    for token in j["added_tokens"]:
        token["normalized"] = token["normalized"] and not token["special"]
    return Tokenizer.from_str(json.dumps(j))


def expect(t, d, texts):
    out = dict(cases=[], blocks=[])
    for raw in CASES:
        text = raw.decode(errors="replace")
        ids = t.encode(text, add_special_tokens=False).ids
        out["cases"].append(dict(ids=ids, wrapped=t.encode(text).ids, text=t.decode(ids, skip_special_tokens=False), visible=d.decode(ids)))
    for b in range(N_BLOCKS):
        ids = [e.ids for e in t.encode_batch(texts[b * BLOCK : (b + 1) * BLOCK], add_special_tokens=False)]
        text = b"".join(s.encode() for s in t.decode_batch(ids, skip_special_tokens=False))
        out["blocks"].append([checksum(sum(ids, [])), checksum(np.frombuffer(text, dtype=np.uint8))])
    return out


SMALL_TEXTS = ["a b", " a b ", "  a", "   ", "xa b", "ax a", "xxa", "xxxa b", "x a", "a", "ab", "a\u00e9", "\u00e9", "\u00e9a b", "e\u0301 a", "\u0301\u0323a", "\ufb01a",
               "\ud55ca", "\u00e9\u3099\u0323a", "keep", "a keep b hold b", "keep a", " keepkeep", "<S>a b", "a<S> b", " <S> a", "\u00e9\u00e9x", "xkeep a", "\u0130a", "\u00a0 a"]


def small_tokenizers():
    N, P = normalizers, pre_tokenizers
    vocab = ["<unk>", "a", "b", SPACE, "#", "##a", "x", "y", " ", "e", "\u00e9", "\u0301", "f", "i", "b/", "/"]
    byte = vocab + [f"<0x{b:02X}>" for b in range(256)]
    first, always = P.Metaspace(SPACE, "first", True), P.Metaspace(SPACE, "always", True)
    parted = P.Sequence([P.Split(Regex("[xei\u1112-\u11ff]"), "isolated"), first])
    removed = [None, N.Strip(True, False), N.Replace("x", ""), N.Replace(Regex("^x+"), "y"), N.Replace(Regex("^ +"), ""), N.Replace(Regex(" {2,}"), " "),
               N.NFC(), N.NFD(), N.NFKD(), N.NFKC(), N.Prepend("xy"), N.Lowercase(), N.Sequence([N.NFD(), N.Replace("e", "")]),
               N.Sequence([N.Strip(True, True), N.Prepend("x")]), N.Sequence([N.Prepend(" "), N.Strip(True, True)]), N.Sequence([N.NFC(), N.Replace("\u00e9", "y")])]
    for norm in removed:
        yield dict(vocab=vocab, norm=norm, pre=first)
        yield dict(vocab=vocab, norm=norm, pre=parted)
        yield dict(vocab=vocab, norm=norm, pre=always)
    for affixes in (dict(continuing_subword_prefix="##"), dict(end_of_word_suffix="/"), dict(continuing_subword_prefix="#", end_of_word_suffix="\u00e9")):
        for more in (dict(), dict(fuse_unk=True)):
            yield dict(vocab=byte, model=dict(byte_fallback=True, **affixes, **more))
            yield dict(vocab=byte, model=dict(byte_fallback=True, **affixes, **more), pre=P.WhitespaceSplit())
        yield dict(vocab=byte[:-100], model=dict(byte_fallback=True, **affixes))
    llama2 = N.Sequence([N.Prepend(SPACE), N.Replace(" ", SPACE)])
    for norm, dec in ((llama2, SP_DECODER), (llama2, None), (N.Replace("k", "xK"), SP_DECODER), (N.Strip(True, True), SP_DECODER)):
        yield dict(vocab=vocab, norm=norm, dec=dec)


def small():
    out = []
    for s in small_tokenizers():
        t = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(s["vocab"])}, merges=[], unk_token="<unk>", **s.get("model", {})))
        for key, name in (("norm", "normalizer"), ("pre", "pre_tokenizer"), ("dec", "decoder")):
            if s.get(key):
                setattr(t, name, s[key])
        t.add_tokens([AddedToken("keep", normalized=True), AddedToken("hold", normalized=False), special("<S>")])
        t = Tokenizer.from_str(t.to_str())
        cases = []
        for text in SMALL_TEXTS:
            ids = t.encode(text).ids
            cases.append(dict(text=text, ids=ids, decoded=t.decode(ids, skip_special_tokens=False), visible=t.decode(ids)))
        out.append(dict(tokenizer=json.loads(t.to_str()), cases=cases))
    return out


def main(folder):
    texts = [document(d) for d in range(N_BLOCKS * BLOCK)]
    print("corpus: %.2f MB" % (len("".join(texts).encode()) / 1e6))
    os.makedirs(folder, exist_ok=True)
    chosen = sys.argv[2:] or FAMILIES
    with open(f"{folder}/cases.json", "w") as f:
        json.dump([c.hex() for c in CASES], f, indent=0)
    with open(f"{folder}/small.json", "w") as f:
        json.dump(small(), f, ensure_ascii=True, separators=(",", ":"))
    for name in chosen:
        family = FAMILIES[name]
        t, j = train(name, family)
        os.makedirs(f"{folder}/{name}", exist_ok=True)
        with open(f"{folder}/{name}/tokenizer.json", "w") as f:
            json.dump(j, f, ensure_ascii=False, separators=(",", ":"))
        with open(f"{folder}/{name}/expected.json", "w") as f:
            json.dump(expect(t, decoding(j), texts), f, ensure_ascii=True, separators=(",", ":"))
        print(name, t.get_vocab_size())


if __name__ == "__main__":
    main(sys.argv[1])

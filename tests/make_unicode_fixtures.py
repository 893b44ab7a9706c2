#!/usr/bin/env python3
"""Write tests/data/tokenizer/unicode.json: the results of Hugging Face's tokenizers for every character, as checksums; C test: tests/test_unicode.c.

    python tests/make_unicode_fixtures.py           (needs tokenizers, numpy and regex; the tests need none)

  classes      expressions for one character, and the sum of mix64(c) over all characters c that match
  splits       pre-tokenizers, and the sum of mix64(begin * 2^32 + end) over all pieces of two texts: every character in order, and 400,000 drawn at random
  normalizers  and the sum of (byte + 1) * mix64(place) over the normalised texts of normal_texts()
"""
import json
import os

import fixtures
import numpy as np
from regex import _regex_core
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from make_tokenizer_fixtures import DEEPSEEK, GPT2, NUMBERED, TEKKEN

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, ALL))


def mix64(x):
    return fixtures.mix64(np.asarray(x, dtype=np.uint64))


def total(values):
    with np.errstate(over="ignore"):
        return "%016x" % int(np.asarray(values, dtype=np.uint64).sum(dtype=np.uint64))


def drawn():
    """400,000 characters, most of them beyond what any table has; every fourth is below U+0400, so that they have neighbours."""
    r = mix64(np.arange(400000))
    below = np.choose((r % np.uint64(4)).astype(int), [0x400, 0x20000, 0x110000, 0x110000]).astype(np.uint64)
    c = (r >> np.uint64(8)) % below
    c = np.where((c >= 0xD800) & (c < 0xE000), np.uint64(32), c)
    return "".join(map(chr, c.tolist()))


TEXTS = [TEXT, drawn()]


def known(name):
    try:
        Regex(r"\p{%s}" % name)
        return True
    except Exception:
        return False


def classes():
    categories = "L M N P S Z C LC Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
    names = categories + ["Letter", "Decimal_Number", "Alphabetic", "White_Space", "Alpha", "Digit"]
    names += [n for n in _regex_core.PROPERTIES["SCRIPT"][1] if known(n)]
    patterns = [r"\p{%s}" % n for n in names] + [r"\P{L}", r"\p{^N}", r"\s", r"\S", r"\w", r"\W", r"\d", r"\D", r"\h", r"\H", "."]
    patterns += [r"[^\s\p{L}\p{N}]", r"[^\r\n\p{L}\p{N}]", r"[\p{L}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[^\w\s]", r"[\w]", r"[\W]", r"[\S]", r"[a-z\u0100-\u0200]"]
    patterns += [r"(?i:[s])", r"(?i:[a-z])", r"(?i:[^k])", r"(?i:s)", r"(?i:\p{Lu})", r"(?i:\w)", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]", r"[\u0800-\ud7ff]"]
    out = {}
    for p in patterns:
        kept = np.zeros(len(ALL), dtype=bool)
        for _, (b, e) in pre_tokenizers.Split(Regex(p), "removed").pre_tokenize_str(TEXT):
            kept[b:e] = True
        out[p] = total(mix64(np.array(ALL)[~kept]))
    return out


def split(pattern, behavior="isolated"):
    return pre_tokenizers.Split(Regex(pattern), behavior)


def splits():
    each = [pre_tokenizers.Digits(True), pre_tokenizers.Digits(False), pre_tokenizers.Punctuation(), pre_tokenizers.Whitespace(),
            pre_tokenizers.WhitespaceSplit(), split(GPT2), split(NUMBERED % r"\p{N}{1,3}"), split(NUMBERED % r"\p{N}"), split(TEKKEN), split(DEEPSEEK),
            split(r"\b"), split(r"\w+|[^\w\s]+", "removed")]
    out = []
    for p in each:
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = p
        spec = json.loads(t.to_str())["pre_tokenizer"]
        sums = []
        for text in TEXTS:
            at = np.array([o for _, o in p.pre_tokenize_str(text)], dtype=np.uint64)
            sums.append(total(mix64(at[:, 0] * np.uint64(2**32) + at[:, 1])))
        out.append({"pre_tokenizer": spec, "sums": sums})
    return out


def normal_texts():
    """Every character between neighbours that it may change places or compose with; then the two texts."""
    around = ["%s\n", "a%s\u0301\n", "\u0345%s\u0334\n", "\uac00%s\u11a8\n", "\u0915%s\u3099\n"]
    return ["".join(a % c for c in TEXT) for a in around] + TEXTS


def normal():
    texts, out = normal_texts(), {}
    for form in (normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase()):
        sums = []
        for text in texts:
            raw = np.frombuffer(form.normalize_str(text).encode(), dtype=np.uint8).astype(np.uint64)
            with np.errstate(over="ignore"):
                sums.append(total((raw + np.uint64(1)) * mix64(np.arange(len(raw)))))
        out[type(form).__name__] = sums
    return out


def main():
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "tokenizer")
    with open(os.path.join(folder, "unicode.json"), "w") as f:
        json.dump({"classes": classes(), "splits": splits(), "normalizers": normal()}, f, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Write src/text/unicode_tables.c: character properties as Hugging Face's tokenizers has them, measured by calling the library.

    python tools/make_unicode.py > src/text/unicode_tables.c        (needs the packages tokenizers and regex)

The library combines several sources with their own versions of Unicode (Oniguruma, Rust's standard library, two crates).
Therefore every table is measured. A table is a list of runs, packed into text: the length of each run minus 1, and its value.
tests/make_unicode_fixtures.py checks it.
"""

import tokenizers
from regex import _regex_core
from tokenizers import Regex, normalizers, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, ALL))
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
ALPHABETIC, NUMERIC, PUNCTUATION = 32, 64, 128
FORMS = [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()]
MOVES, COMPOSES, BEGINS = 16, 32, 64  # flags after one for each form that changes the character
SYMBOLS = [chr(c) for c in range(33, 127) if chr(c) not in '"?\\']


def left_out(splitter):
    """Code points that a pre-tokenizer removes."""
    kept = bytearray(len(ALL))
    for _, (begin, end) in splitter.pre_tokenize_str(TEXT):
        kept[begin:end] = b"\1" * (end - begin)
    return [c for c, k in zip(ALL, kept) if not k]


def with_property(name):
    return left_out(pre_tokenizers.Split(Regex(r"\p{%s}" % name), "removed"))


def apart(splitter):
    """Code points that are separate pieces between two letters."""
    return [c for c in ALL if len(splitter.pre_tokenize_str("x" + chr(c) + "x")) == 3]


def general():
    value = [0] * 0x110000
    for i, name in enumerate(CATEGORIES):
        for c in with_property(name):
            value[c] = i
    for found, flag in ((with_property("Alphabetic"), ALPHABETIC), (apart(pre_tokenizers.Digits(True)), NUMERIC),
                        (apart(pre_tokenizers.Punctuation()), PUNCTUATION)):
        for c in found:
            value[c] |= flag
    return value


def known(name):
    try:
        Regex(r"\p{%s}" % name)
        return True
    except Exception:  # newer than the library
        return False


def scripts():
    """Names of each script (at most three), value of each code point: 1 + index of its script in the list."""
    names = {}
    for name, code in _regex_core.PROPERTIES["SCRIPT"][1].items():
        if known(name):
            names.setdefault(code, []).append(name.lower().replace("_", ""))
    value, listed = [0] * 0x110000, list(names.values())
    for i, aliases in enumerate(listed):
        for c in with_property(aliases[0]):
            assert value[c] == 0
            value[c] = i + 1
    return listed, value


def normal():
    value = [0] * 0x110000
    nfc, nfd = FORMS[0].normalize_str, FORMS[1].normalize_str
    for c in ALL:
        s = chr(c)
        for i, form in enumerate(FORMS):
            if form.normalize_str(s) != s:
                value[c] |= 1 << i
        if nfd("a\u0345" + s) != "a\u0345" + nfd(s) or nfd("a" + s + "\u0334") != "a" + nfd(s) + "\u0334":
            value[c] |= MOVES
        parts = nfd(s)
        if len(parts) > 1 and nfc(parts) == s:  # a composite: record its parts
            value[ord(parts[-1])] |= COMPOSES
            first = nfc(parts[:-1])
            assert len(first) == 1
            value[ord(first)] |= BEGINS
    return value


def lower():
    """Distances to lower case, 0 first, and runs: value 2 k + s of distance k, s 1: of every second character."""
    form, runs = normalizers.Lowercase().normalize_str, []
    for c in ALL:
        low = form(chr(c))
        if len(low) > 1:
            assert c == 0x130 and low == "i\u0307"
            continue
        d = ord(low) - c
        if d == 0:
            continue
        if runs and runs[-1][3] == d and (c - runs[-1][1] == runs[-1][2] or (runs[-1][0] == runs[-1][1] and c - runs[-1][1] in (1, 2))):
            runs[-1][2], runs[-1][1] = c - runs[-1][1], c
        else:
            runs.append([c, c, 1, d])
    distances = [0] + sorted({d for _, _, _, d in runs})
    value = [0] * 0x110000
    for first, last, step, d in runs:
        value[first:last + 1] = [2 * distances.index(d) + step - 1] * (last + 1 - first)
    return distances, value


def wrapped(items):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 120:
            print(line)
            line = "   "
        line += " " + item + ","
    print(line)


def packed(number):
    """Digits in base 45, the lowest first; a symbol that is 45 higher says that another follows."""
    out = ""
    while number >= 45:
        out += SYMBOLS[45 + number % 45]
        number //= 45
    return out + SYMBOLS[number]


def put_text(text):
    for i in range(0, len(text), 112):
        print('    "%s"' % text[i:i + 112])


def usual_flags(v):
    """The flags that most characters of a category have."""
    name = CATEGORIES[v % 32]
    return {"L": ALPHABETIC, "N": NUMERIC, "P": PUNCTUATION}.get(name[0], 0) | (ALPHABETIC if name == "Nl" else 0)


def put_runs(name, value):
    value[0xD800:0xE000] = [value[0xD7FF]] * 0x800  # surrogates, which no text contains
    begins = [c for c in range(0x110000) if c == 0 or value[c] != value[c - 1]] + [0x110000]
    print(f"\nstatic const char {name}[] =")
    put_text("".join(packed(end - c - 1) + packed(value[c]) for c, end in zip(begins, begins[1:])))
    print(f"    ;\nstatic uint32_t {name}_runs[{len(begins) - 1}];")


def main():
    names, script = scripts()
    print(f"/* unicode_tables.c - made by tools/make_unicode.py with tokenizers {tokenizers.__version__}; see unicode.h. */")
    print('#include "dtrain/text/unicode.h"')
    put_runs("general", [v ^ usual_flags(v) for v in general()])
    put_runs("normal", normal())
    put_runs("script", script)
    distances, value = lower()
    put_runs("lower", value)
    print("\ndt_unicode_table dt_unicode_tables[] = {")
    for name in ("general", "normal", "script", "lower"):
        print("    {%s, %s_runs, sizeof %s_runs / sizeof *%s_runs}," % (name, name, name, name))
    print("};\n\nconst char dt_unicode_script_names[] =")
    put_text(",".join(" ".join(aliases) for aliases in names))
    print("    ;\n\nconst int32_t dt_unicode_lower_distances[] = {")
    wrapped(map(str, distances))
    print("};")


main()

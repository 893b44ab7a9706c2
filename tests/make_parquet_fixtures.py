#!/usr/bin/env python3
"""Write tests/data/parquet: datasets as Parquet files, and each once more as JSON lines, of which dtrain-data must make the same file.

    NAME.parquet    by pyarrow, as pandas and datasets write them; the compressions, encodings and row groups differ from file to file
    NAME.jsonl      the same records; images are paths into ../vision_data there, and their bytes in the Parquet files
    bad.parquet     rows without what a record needs, between good ones
    types.parquet   a column of each type, in addition to texts
    text_is_bytes.parquet, no_records.parquet, no_rows.parquet

Run with a Python that has pyarrow; the tests need none. Test: tests/e2e_parquet.sh.

    python tests/make_parquet_fixtures.py
"""
import datetime
import decimal
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq

TESTS = os.path.dirname(os.path.abspath(__file__))
HERE, IMAGES = os.path.join(TESTS, "data", "parquet"), os.path.join(TESTS, "data", "vision_data")
TEXT = pa.string()
IMAGE = pa.struct([("bytes", pa.binary()), ("path", TEXT)])


def image(name):
    with open(os.path.join(IMAGES, name), "rb") as file:
        return file.read()


def write(name, fields, rows, lines=None, **how):
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(fields)), os.path.join(HERE, name + ".parquet"), **how)
    if lines is not None:
        with open(os.path.join(HERE, name + ".jsonl"), "w") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")


def pair(question, answer, role="role", text="content", user="user", assistant="assistant"):
    return [{role: user, text: question}, {role: assistant, text: answer}]


def texts():
    odd = 'a "quoted" \\ word,\n\ttabs, \x01, é, 漢字, 🙂'
    chats = [{"messages": pair(f"{odd} {i}" if i % 3 else "again", "yes" if i % 2 else odd), "source": None if i % 5 else "web"} for i in range(120)]
    message = pa.list_(pa.struct([("role", TEXT), ("content", TEXT)]))
    write("chats", [("messages", message), ("source", TEXT)], chats, chats, row_group_size=50, compression="zstd")
    # a field that only some records have: a null in the table and in JSON
    preferences = [{"prompt": pair("why", "so")[:1] if i % 2 else pair("what", "this")[:1], "chosen": pair("", f"answer {i}")[1:],
                    "rejected": pair("", "no")[1:], "margin": i / 8} for i in range(40)]
    write("preferences", [("prompt", message), ("chosen", message), ("rejected", message), ("margin", pa.float32())], preferences, preferences,
          compression="gzip", use_dictionary=False)
    prompts = [{"prompt": f"{i} + 1 =", "answer": i + 1, "level": {"name": "easy", "steps": [i, i + 1]}, "right": i % 2 == 0, "none": None, "share": i / 4}
               for i in range(20)]
    level = pa.struct([("name", TEXT), ("steps", pa.list_(pa.int16()))])
    write("prompts", [("prompt", TEXT), ("answer", pa.int64()), ("level", level), ("right", pa.bool_()), ("none", pa.null()), ("share", pa.float64())],
          prompts, prompts, compression="none", data_page_version="2.0")
    plain = [{"text": f"line {i}, {odd}"} for i in range(50)]
    write("texts", [("text", pa.large_string())], plain, plain, compression="brotli", row_group_size=7)


def pictures():
    names = ["wide.ppm", "square.png", "high.ppm", "square.png"]
    ask = ["<image>\nWhat is in the picture?", "What is it?\n<image>"]
    path = "../vision_data/%s"
    # AnyLLM and minimind-v: messages as JSON text, the image as bytes
    rows = [pair(ask[i % 2], f"a red square {i}") for i in range(4)]
    write("anyllm", [("conversations", TEXT), ("image_bytes", pa.binary())],
          [{"conversations": json.dumps(m, ensure_ascii=False), "image_bytes": image(n)} for m, n in zip(rows, names)],
          [{"conversations": m, "image": path % n} for m, n in zip(rows, names)], compression="snappy")
    # LLaVA's records with datasets' images
    rows = [pair(ask[i % 2], f"a blue circle {i}", "from", "value", "human", "gpt") for i in range(4)]
    write("llava", [("id", TEXT), ("image", IMAGE), ("conversations", pa.list_(pa.struct([("from", TEXT), ("value", TEXT)])))],
          [{"id": str(i), "image": {"bytes": image(n), "path": n}, "conversations": m} for i, (m, n) in enumerate(zip(rows, names))],
          [{"id": str(i), "image": path % n, "conversations": m} for i, (m, n) in enumerate(zip(rows, names))], compression="lz4", row_group_size=3)
    # TRL's: a list of images, none, bytes without a path, and a path without bytes
    lists = [["wide.ppm"], [], None, ["high.ppm", "square.png"]]
    rows = [pair("What is in the picture?", f"squares {i}") for i in range(4)]
    given = [[{"bytes": image("wide.ppm"), "path": None}], [], None, [{"bytes": image("high.ppm"), "path": "no/such.ppm"}, {"bytes": None, "path": path % "square.png"}]]
    write("images", [("messages", pa.list_(pa.struct([("role", TEXT), ("content", TEXT)]))), ("images", pa.list_(IMAGE))],
          [{"messages": m, "images": g} for m, g in zip(rows, given)],
          [{"messages": m, "images": n and [path % one for one in n]} for m, n in zip(rows, lists)])
    # parts of messages that have the bytes
    part = pa.struct([("type", TEXT), ("text", TEXT), ("image", IMAGE)])
    fields = [("messages", pa.list_(pa.struct([("role", TEXT), ("content", pa.list_(part))])))]

    def parts(see):
        return [{"messages": [{"role": "user", "content": [{"type": "text", "text": "and ", "image": None}, {"type": "image", "text": None, "image": see(n)},
                                                           {"type": "text", "text": "this?", "image": None}]},
                              {"role": "assistant", "content": [{"type": "text", "text": "a circle", "image": None}]}]} for n in names]

    write("parts", fields, parts(lambda n: {"bytes": image(n), "path": n}), parts(lambda n: path % n))
    answers = [{"prompt": pair("What is it?", "")[:1], "image": n, "answer": "red"} for n in names]
    write("image_prompts", [("prompt", pa.list_(pa.struct([("role", TEXT), ("content", TEXT)]))), ("image", IMAGE), ("answer", TEXT)],
          [dict(a, image={"bytes": image(a["image"]), "path": path % a["image"]}) for a in answers],
          [dict(a, image={"bytes": None, "path": path % a["image"]}) for a in answers])
    # what JSON has not, inside of what it has: a text for the date of a message, a real for its price
    day = [datetime.date(2026, 1, i + 1) for i in range(6)]
    of = pa.struct([("price", pa.decimal128(9, 2)), ('say "when"', pa.list_(pa.date32()))])
    message = pa.list_(pa.struct([("role", TEXT), ("content", TEXT), ("date", pa.date32()), ("of", of)]))
    chats = [[dict(m, date=None if i == 4 else day[i], of={"price": decimal.Decimal(i) / 4, 'say "when"': [day[i]] * (i % 3)}) for m in pair(f"when {i}", f"on {i}")]
             for i in range(6)]
    rows = [{"prompt": chat[:1], "chat": None if i == 3 else chat, "image": {"bytes": None, "path": path % names[i % 4], "taken": day[i]}} for i, chat in enumerate(chats)]
    write("dated", [("prompt", message), ("chat", message), ("image", pa.struct([("bytes", pa.binary()), ("path", TEXT), ("taken", pa.date32())]))],
          [dict(row, image=dict(row["image"], bytes=image(names[i % 4]))) for i, row in enumerate(rows)],
          json.loads(json.dumps(rows, default=lambda x: str(x) if isinstance(x, datetime.date) else float(x))))


def mistakes():
    good, cut = pair("<image>", "red"), image("square.png")[:40]
    rows = [(good, image("square.png")), (None, image("square.png")), (good, cut), (good, None), (good, b""), (good, image("wide.ppm"))]
    write("bad", [("messages", pa.list_(pa.struct([("role", TEXT), ("content", TEXT)]))), ("image", IMAGE)],
          [{"messages": m, "image": b is not None and {"bytes": b, "path": None} or None} for m, b in rows], row_group_size=2)
    when = datetime.datetime(2026, 1, 2, 3, 4, 5)
    write("types", [("text", TEXT), ("date", pa.date32()), ("time", pa.timestamp("us")), ("price", pa.decimal128(12, 3)), ("map", pa.map_(TEXT, pa.int32())),
                    ("times", pa.list_(pa.timestamp("ms"))), ("key", pa.dictionary(pa.int32(), TEXT)), ("u64", pa.uint64()), ("f32", pa.float32()), ('a "b"', pa.int8()),
                    ("prompt", TEXT)],
          [{"text": "one", "date": when.date(), "time": when, "price": decimal.Decimal("1234.500"), "map": [("a", 1)], "times": [when], "key": "k",
            "u64": 2**64 - 1, "f32": 0.1, 'a "b"': -3, "prompt": "p"}])
    write("text_is_bytes", [("text", pa.binary())], [{"text": b"plain words"}])
    write("no_records", [("query", TEXT), ("n", pa.int32())], [{"query": "x", "n": 1}])
    write("no_rows", [("text", TEXT)], [])


def main():
    os.makedirs(HERE, exist_ok=True)
    texts()
    pictures()
    mistakes()


if __name__ == "__main__":
    main()

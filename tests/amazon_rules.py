#!/usr/bin/env python3
"""amazon_rules.py - dumps of reviews in the forms of Amazon's of 2018 and 2023, and what MiniOneRec's scripts (data/amazon18_data_process.py,
amazon23_data_process.py, convert_dataset.py) select from them, by their rules.

    amazon_rules.py make DIR 2018|2023                               DIR/meta.json, DIR/reviews.json
    amazon_rules.py compare DIR 2018|2023 PREFIX FROM TO MIN_ITEMS   PREFIX.item.json and PREFIX.*.csv have these items and rows; prints their numbers
"""
import ast
import collections
import csv
import datetime
import html
import json
import pathlib
import random
import re
import sys

K = 5
folder, year = pathlib.Path(sys.argv[2]), int(sys.argv[3])
new = year == 2023


def make():
    r = random.Random(year)
    words = "red blue lamp it's \"big\" desk &amp; chair <b>soft</b> \u00e9clair, 12\u2033 back\\slash".split(" ")
    with open(folder / "meta.json", "w") as f:
        for i in range(90):
            title = " ".join(r.choices(words, k=r.choice([1, 2, 3, 6, 25] if not new else [0, 1, 4])))
            title = {7: "<span id=x>", 8: "&quot;quoted&quot;", 9: "x", 11: "Tom &#146;n&#x92; Jerry&#0;"}.get(i, title)
            m = {"parent_asin" if new else "asin": f"B{i:03}", "title": title, "description": [f"<p>No. {i}</p>", "a  &lt; b &#233; 5&#150;7 R&amp;amp;D <"]}
            m |= {"store": "Shop", "categories": ["All", "Things"]} if new else {"brand": "by\nShop", "category": ["All", "Things", "<span>x</span>"]}
            if i == 10:
                del m["title"]
            f.write(json.dumps(m) + "\n")
    with open(folder / "reviews.json", "w") as f:
        for _ in range(2500):
            t = int(datetime.datetime(r.choice([2014, 2016, 2017, 2018]), r.randint(1, 12), r.randint(1, 28), tzinfo=datetime.timezone.utc).timestamp())
            user, item = f"U{int(r.paretovariate(0.6)) % 70}", f"B{int(r.paretovariate(0.5)) % 95:03}"
            f.write(json.dumps({"user_id": user, "asin": "other", "parent_asin": item, "timestamp": 1000 * t + 7, "rating": 5.0} if new else
                               {"reviewerID": user, "asin": item, "unixReviewTime": t, "overall": 5.0, "reviewText": "ok"}) + "\n")


def clean(text):
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", text)).replace("&quot;", '"').replace("&amp;", "&")).strip()


def titles():
    out = {}
    for m in map(json.loads, open(folder / "meta.json")):
        if new:
            title = clean(m.get("title", ""))
            if title:
                out[m["parent_asin"]] = title
        elif "title" in m and "<span id" not in m["title"]:
            title = m["title"].replace("&quot;", '"').replace("&amp;", "&").strip(" ").strip('"')
            if len(title) > 1 and len(title.split(" ")) <= 20:
                out[m["asin"]] = title
    return out


def k_core(reviews, title, first, last):
    gone = {item for _, item, _ in reviews if item not in title}, set()
    reviews = [r for r in reviews if first <= r[2] <= last]
    while True:
        reviews = [r for r in reviews if r[1] not in gone[0] and r[0] not in gone[1]]
        few = [{x for x, n in collections.Counter(r[k] for r in reviews).items() if n < K} for k in (1, 0)]
        if not few[0] and not few[1]:
            return reviews
        gone = gone[0] | few[0], gone[1] | few[1]


def select(from_month, to_month, min_items):
    start = lambda y, m: datetime.datetime(y, m, 1, tzinfo=datetime.timezone.utc).timestamp()
    y, m = map(int, from_month.split("-"))
    last = start(*map(int, to_month.split("-")))
    title = titles()
    keys = ("user_id", "parent_asin", "timestamp") if new else ("reviewerID", "asin", "unixReviewTime")
    reviews = [(r[keys[0]], r[keys[1]], r[keys[2]] // (1000 if new else 1)) for r in map(json.loads, open(folder / "reviews.json"))]
    kept = k_core(reviews, title, start(y, m), last)
    while y > 1996 and len({r[1] for r in kept}) < min_items:
        y -= 1
        kept = k_core(reviews, title, start(y, m), last)
    of_user = collections.defaultdict(list)
    for user, item, time in kept:
        of_user[user].append((time, item))
    number, rows = {}, []
    for u, mine in enumerate(of_user.values()):
        mine.sort(key=lambda x: x[0])
        ids = [number.setdefault(item, len(number)) for _, item in mine]
        rows += [(mine[i][0], f"A{u}", ids[max(i - 10, 0):i], ids[i]) for i in range(1, len(ids))]
    rows.sort(key=lambda x: x[0])
    a, b = int(len(rows) * 0.8), int(len(rows) * 0.9)
    return [title[item] for item in number], {"train": rows[:a], "valid": rows[a:b], "test": rows[b:]}, len(kept), len(of_user)


def compare(prefix, *how):
    title, rows, n_reviews, n_users = select(how[0], how[1], int(how[2]))
    items = json.load(open(prefix + ".item.json"))
    assert [items[str(i)]["title"] for i in range(len(items))] == title, "titles"
    assert all(i["description"][1] == "a < b \u00e9 5\u20137 R&D <" and i["categories"] == ["All", "Things"] and i["brand"] == ["Shop"] for i in items.values())
    for split, want in rows.items():
        found = list(csv.DictReader(open(f"{prefix}.{split}.csv", newline="")))
        assert [(r["user_id"], ast.literal_eval(r["history_item_id"]), int(r["item_id"])) for r in found] == [w[1:] for w in want], split
        for r in found:
            assert ast.literal_eval(r["history_item_title"]) == [title[i] for i in ast.literal_eval(r["history_item_id"])]
            assert r["item_title"] == title[int(r["item_id"])]
    print(n_reviews, n_users, len(title), *map(len, rows.values()))


make() if sys.argv[1] == "make" else compare(*sys.argv[4:])

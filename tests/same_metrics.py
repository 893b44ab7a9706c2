#!/usr/bin/env python3
"""same_metrics.py A B - do two runs report the same metrics, apart from times, rates and memory?

Both metrics.jsonl must hold the same training and validation records, each once and in the order of their steps.
Prints the first difference; exit status 1 if there is one."""
import json
import re
import sys

VARIES = re.compile(r"time|per_second|^mfu|memory|^save/|^ms/")


def read(path):
    records, seen = [], set()
    for line in open(path):
        r = json.loads(line)
        key = r["step"], "validation_loss" in r
        if key in seen:
            sys.exit("%s: two records of step %d" % (path, r["step"]))
        seen.add(key)
        records.append((key, {k: v for k, v in r.items() if not VARIES.search(k)}))
    return records


a, b = read(sys.argv[1]), read(sys.argv[2])
for (key, x), (_, y) in zip(a, b):
    if repr(x) != repr(y): # NaN is like itself
        sys.exit("step %d: %s" % (key[0], "; ".join("%s %s and %s" % (k, x.get(k), y.get(k)) for k in {**x, **y}
                                                    if repr(x.get(k)) != repr(y.get(k)))))
if len(a) != len(b) or not a:
    sys.exit("%d and %d records" % (len(a), len(b)))

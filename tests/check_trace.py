#!/usr/bin/env python3
"""check_trace.py TRACE NRANKS LANE... - checks that a trace is consistent. Every rank has these lanes, with spans on
them; the spans of a lane do not overlap; a wait for a collective ends no earlier than the collective; the reduction of a
block's gradients begins after its backward."""
import collections
import json
import sys

EPS = 0.0021  # us: begin and length of both spans are printed to 0.001, and the numbers are compared in doubles


def lanes_of(events):
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lanes = {key: [] for key in names}
    for e in events:
        if e["ph"] == "X":
            lanes[e["pid"], e["tid"]].append(e)
    for spans in lanes.values():
        spans.sort(key=lambda e: (e["ts"], e["ts"] + e["dur"]))
    return names, lanes


def end(e):
    return e["ts"] + e["dur"]


def check_overlap(name, spans):
    for a, b in zip(spans, spans[1:]):
        if b["ts"] < end(a) - EPS:
            yield f"{name}: {b['name']} begins at {b['ts']}, before {a['name']} ends at {end(a)}"


def check_waits(spans):
    sent = {e["args"]["collective"]: e for e in spans if e["cat"] in ("all_gather", "reduce_scatter", "broadcast")}
    n = 0
    for e in spans:
        if e["cat"] != "wait":
            continue
        n += 1
        of = sent.get(e["args"]["collective"])
        if of and end(e) < end(of) - EPS:
            yield f"{e['name']} ends at {end(e)}, before collective {e['args']['collective']}, {of['name']}, at {end(of)}"
    if n == 0:
        yield "no span of a wait"


def check_sends(compute, comm):
    """The nth reduction of a block begins after the backward work that was queued before it."""
    queued = collections.defaultdict(list)
    for e in compute:
        if e["cat"] == "reduce":
            queued[e["name"].split()[-1]].append(e)
    seen = collections.Counter()
    for e in comm:
        unit = e["name"].split()[-1]
        if e["cat"] != "reduce_scatter" or not unit.startswith("block."):
            continue
        if seen[unit] >= len(queued[unit]):
            yield f"{e['name']}: one more than was queued"
        elif e["ts"] < queued[unit][seen[unit]]["ts"] - EPS:
            yield f"{e['name']} begins at {e['ts']}, before backward ends at {queued[unit][seen[unit]]['ts']}"
        seen[unit] += 1
    if not seen:
        yield "no reduction of a block"


def main():
    path, nranks, wanted = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    events = json.load(open(path))["traceEvents"]
    names, lanes = lanes_of(events)
    wrong = []
    for rank in range(nranks):
        mine = {names[key]: spans for key, spans in lanes.items() if key[0] == rank}
        wrong += [f"rank {rank}: no spans of {lane}" for lane in wanted if not mine.get(lane)]
        for lane, spans in mine.items():
            wrong += [f"rank {rank}, " + w for w in check_overlap(lane, spans)]
        if "communication" in wanted:
            everything = [e for lane, spans in mine.items() if lane != "host" for e in spans]
            wrong += [f"rank {rank}: " + w for w in check_waits(everything)]
            wrong += [f"rank {rank}: " + w for w in check_sends(mine["compute"], mine["communication"])]
    print("\n".join(wrong[:20]) or f"{len(events)} events")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

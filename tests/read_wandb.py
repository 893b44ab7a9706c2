"""read_wandb.py FILE.wandb - prints the contents of an offline run as JSON: {"run": {...}, "config": {...}, "history": [...], "summary": {...}}.

The file is a log in LevelDB's format after a header of 7 bytes: blocks of 32 KiB, records with checksum, length (16 bits) and a type: whole, first part, middle,
last. Each record is a protocol buffer of the package wandb."""
import json
import struct
import sys

from wandb.proto import wandb_internal_pb2 as pb

BLOCK = 32768


def records(data):
    at, parts = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:  # too little for a header: filled up
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at:at + 7])
        parts += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def items(update):
    return {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in update}


result = {"run": {}, "config": {}, "history": [], "summary": {}}
with open(sys.argv[1], "rb") as f:
    for raw in records(f.read()):
        r = pb.Record()
        r.ParseFromString(raw)
        kind = r.WhichOneof("record_type")
        if kind == "run":
            result["run"] = {"id": r.run.run_id, "project": r.run.project, "name": r.run.display_name}
            result["config"].update(items(r.run.config.update))
        elif kind == "config":
            result["config"].update(items(r.config.update))
        elif kind == "history":
            result["history"].append({**items(r.history.item), "_step": r.history.step.num})
        elif kind == "summary":
            result["summary"].update(items(r.summary.update))
        elif kind == "exit":
            result["exit"] = r.exit.exit_code
print(json.dumps(result))

#!/usr/bin/env python3
"""wandb_offline.py OUTPUT_DIR [options] - converts a run of dtrain to an offline run of Weights & Biases, for `wandb sync`.

Compute nodes may have no network, so dtrain only writes metrics.jsonl. This script reads that file and config.ini, and
creates a directory OUTPUT_DIR/wandb/offline-run-* with history, configuration and summary. `wandb sync` uploads it from a
machine with network access. Requires the package wandb (pip install wandb), but no network.

A run that is converted again after it has continued keeps its id: syncing the newer directory replaces the older one.
"""
import argparse
import configparser
import hashlib
import json
import os
import sys

EX_USAGE, EX_DATA, EX_WRITE = 64, 65, 74


def fail(code, message):
    print(f"wandb_offline.py: error: {message}", file=sys.stderr)
    sys.exit(code)


def typed(text):
    """Convert a configuration value to a number or truth value if possible."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def read_config(path):
    ini = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=(";", "#"), strict=False)
    ini.optionxform = str
    try:
        with open(path, encoding="utf-8") as f:
            ini.read_file(f)
    except FileNotFoundError:
        return {}
    except (OSError, configparser.Error, UnicodeDecodeError) as e:
        fail(EX_DATA, f"{path}: cannot read: {e}")
    return {f"{s}.{k}": typed(v) for s in ini.sections() for k, v in ini.items(s) if v != ""}


def read_history(path):
    """One dictionary per step, in order, with its training and validation records. An incomplete last line is ignored."""
    steps = {}
    try:
        with open(path, encoding="utf-8") as f:
            lines = f.read().split("\n")
    except OSError as e:
        fail(EX_DATA, f"{path}: cannot read: {e.strerror}; expected the output_dir of a run with jsonl in log.report_to")
    for number, line in enumerate(lines[:-1], 1):  # without the last item: empty, or an incomplete line
        try:
            record = json.loads(line)
            step = record.pop("step")
        except (ValueError, KeyError, AttributeError, TypeError):
            fail(EX_DATA, f"{path}:{number}: expected a JSON object with \"step\"")
        steps.setdefault(step, {}).update((k, v) for k, v in record.items() if v is not None)
    if not steps:
        fail(EX_DATA, f"{path}: expected at least one record, found none")
    return sorted(steps.items())


def named(key):
    """Metric name with its chart group in Weights & Biases: train/..., validation/..., or the task's own."""
    if "/" in key:
        return key
    if key.startswith("validation_"):
        return "validation/" + key[len("validation_"):]
    return ("validation/" if key == "perplexity" else "train/") + key


def parse(argv):
    p = argparse.ArgumentParser(prog="wandb_offline.py", description="Turn a run of dtrain into an offline run of Weights & Biases.")
    p.add_argument("output_dir", help="the run's output_dir")
    p.add_argument("--project", default="dtrain", help="project of the run (default dtrain)")
    p.add_argument("--entity", help="user or team (default: the login's)")
    p.add_argument("--name", help="name of the run (default: the directory's name)")
    p.add_argument("--id", help="id of the run (default: derived from the directory's full path)")
    p.add_argument("--dir", help="folder in which to create wandb/offline-run-* (default: OUTPUT_DIR)")
    try:
        return p.parse_args(argv)
    except SystemExit as e:
        sys.exit(EX_USAGE if e.code else 0)


def main():
    o = parse(sys.argv[1:])
    full = os.path.realpath(o.output_dir)
    history = read_history(os.path.join(full, "metrics.jsonl"))
    config = read_config(os.path.join(full, "config.ini"))
    try:
        import wandb
    except ImportError:
        fail(EX_USAGE, "the package wandb is not installed: pip install wandb")
    try:
        run = wandb.init(mode="offline", project=o.project, entity=o.entity, name=o.name or os.path.basename(full), config=config,
                         id=o.id or hashlib.sha256(full.encode()).hexdigest()[:12], resume="allow", dir=o.dir or full,
                         settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True, save_code=False))
        for step, values in history:
            run.log({named(k): v for k, v in values.items()}, step=step)
        made = os.path.dirname(run.dir)  # .../offline-run-TIME-ID/files
        run.finish()
    except OSError as e:
        fail(EX_WRITE, f"{o.dir or full}: cannot write: {e}")
    print(f"{len(history)} steps written; to upload them from a machine with network access:\n  wandb sync {made}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The environment of input/agent.ini, a calculator (docs/environments.md): a line of JSON for each turn of the model, a line of JSON as answer.

The model may call add, sub and mul with numbers a and b. A turn without a call is its answer, which is compared with the field "answer" of the
prompt's record.
"""
import json
import sys

TOOLS = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}

for line in sys.stdin:
    turn = json.loads(line)
    results, failures = [], 0
    for call in turn["tool_calls"]:
        function = call["function"]
        try:
            results.append(str(TOOLS[function["name"]](**function["arguments"]))[:60])
        except Exception as error:
            results.append(f"error: {error!r}"[:60])
            failures += 1
    if results and not turn["last"]:
        answer = {"observation": results, "failures": failures}
    else:
        answer = {"reward": float(turn["text"].strip() == str(turn["answer"])), "done": True}
    print(json.dumps(answer), flush=True)

#!/usr/bin/env python3
"""A reward function: checks whether the completion is the sum requested by the prompt ("12 + 30 =").

grpo.reward_funcs = command:tools/reward_sum.py

1: the completion's first number is the sum; 0.2: another number; 0: no number. null for a prompt without a sum: the function
does not apply. See docs/rewards.md.
"""

import json
import re
import sys

for line in sys.stdin:
    sample = json.loads(line)
    asked = re.search(r"(\d+)\s*\+\s*(\d+)", sample["prompt"])
    found = re.search(r"-?\d+", sample["completion"])
    if not asked:
        reward = None
    elif not found:
        reward = 0
    else:
        reward = 1 if int(found[0]) == int(asked[1]) + int(asked[2]) else 0.2
    print(json.dumps(reward), flush=True)

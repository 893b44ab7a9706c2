#!/bin/bash
# e2e_rewards.sh - reward functions as a user gives them: the examples, and what dtrain-data keeps for them.
. "$(dirname "$0")/e2e.sh"

# ---- the examples
sample() { printf '{"prompt":"%s","completion":"%s","prompt_ids":[1,2],"completion_ids":[3],"answer":"%s"}\n' "$1" "$2" "${3:-}"; }
is() { if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "expected '$3', found '$2'"; fi; }
if command -v python3 >/dev/null; then
    is "reward_sum.py" "$({
        sample '12 + 30 =' ' 42'
        sample '12 + 30 =' ' it is -1'
        sample '12 + 30 =' ' no'
        sample 'who?' ' 42'
    } | tools/reward_sum.py | tr '\n' ' ')" "1 0.2 0 null "
else skip "reward_sum.py" "no python3"; fi
is "reward_brief.sh" "$({
    sample 'a long question' '12345678'
    sample 'a long question' '123456789'
    sample 'q' ''
} | tools/reward_brief.sh 8 | tr '\n' ' ')" "1 0 1 "
e2e_done

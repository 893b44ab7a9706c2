#!/bin/sh
# reward_brief.sh MOST - a reward function: 1 for a completion of at most MOST characters, else 0.
#
#   grpo.reward_funcs = command:tools/reward_brief.sh 80
#
# Keys come in the order prompt, completion, prompt_ids, completion_ids, so that a shell finds the
# completion without a JSON parser. Characters that JSON writes as \n or \" count twice. See
# docs/rewards.md.
most=${1:?expected the number of characters}
while IFS= read -r line; do
    completion=${line#*\",\"completion\":\"}
    completion=${completion%%\",\"prompt_ids\":*}
    if [ "${#completion}" -le "$most" ]; then echo 1; else echo 0; fi
done

#!/bin/bash
# plan_tables.sh - the tables of docs/memory.md, from dtrain --plan: Llama 3.1 8B and 70B (input/models/) on 8 and on 64 devices of 80 GB, 8 in a node that
# has 2 TB of memory and 8 TB of disk. `make docs` puts them in their place.
set -euo pipefail
cd "$(dirname "$0")/.."
plan() { # MODEL RANKS
    ./dtrain --plan --ranks "$2" --ranks-per-node 8 --device-memory 80G --host-memory 2T --nvme-space 8T "input/models/llama-3.1-$1.ini" \
        run.device=cuda zero.stage=auto zero.nvme_path=/nvme
}
rows() { # of --plan's output: "STAGE OPTIMIZER PARAMETERS", then a cell for the sums of each place, bytes sent, and whether it fits
    awk 'function word(key) { return match($0, key " = [a-z]+") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : "none" }
         function show() { if (stage != "") printf "%s %s %s|%s | %s | %s | %s | %s | %s\n", stage, optimizer, param, d, p, h, f, sent, fits; d = p = h = f = "-" }
         BEGIN { optimizer = param = "none" }
         /^with / { show(); stage = ""; optimizer = word("offload_optimizer"); param = word("offload_param") }
         /^[0-3]  / { show(); stage = $1; sent = $10; fits = /  fits$/ ? "yes" : "no" }
         /^  device/ { d = $9 } /^  pinned/ { p = $9 } /^  host/ { h = $9 } /^  file/ { f = $9 }
         END { show() }'
}
for model in 8b 70b; do
    for ranks in 8 64; do
        echo
        echo "Llama 3.1 ${model^^} on $ranks ranks:"
        echo
        echo '| stage | `offload_optimizer` | `offload_param` | device | pinned | host | file | sent a step | fits |'
        echo '|---|---|---|---|---|---|---|---|---|'
        plan $model $ranks | rows | sed 's/^\(.\) \([a-z]*\) \([a-z]*\)|/| \1 | \2 | \3 | /; s/$/ |/'
    done
done

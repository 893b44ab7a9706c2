#!/bin/bash
# plan_tables.sh - generates the tables of docs/memory.md with dtrain --plan: Llama 3.1 8B and 70B
# (input/models/) on 8 and on 64 devices of 80 GB, 8 per node with 2 TB of memory and 8 TB of disk.
# `make docs` appends them to that page.
set -euo pipefail
cd "$(dirname "$0")/.."
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT

plan() { # MODEL RANKS
    ./dtrain --plan --ranks "$2" --ranks-per-node 8 --device-memory 80G --host-memory 2T --nvme-space 8T "input/models/llama-3.1-$1.ini" \
        run.device=cuda zero.stage=auto zero.nvme_path=/nvme
}
# Rows of --plan's output, one per stage and offload:
# COLUMN|STAGE|OPTIMIZER|PARAMETERS|device|pinned|host|file|sent|fits
rows_of() { # COLUMN
    awk -v column="$1" '
         function word(key) { return match($0, key " = [a-z]+") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : "none" }
         function show() { if (stage != "") print column "|" stage "|" optimizer "|" param "|" d "|" p "|" h "|" f "|" sent "|" fits; d = p = h = f = "0" }
         BEGIN { optimizer = param = "none" }
         /^with / { show(); stage = ""; optimizer = word("offload_optimizer"); param = word("offload_param") }
         /^[0-3]  / { show(); stage = $1; sent = $10; fits = /  fits$/ ? "yes" : "no" }
         /^  device/ { d = $9 } /^  pinned/ { p = $9 } /^  host/ { h = $9 } /^  file/ { f = $9 }
         END { show() }'
}
# A table with one row per stage and offload, and one column per model and number of ranks.
table() { # device, host or sent
    awk -F'|' -v what="$1" '
        function bytes(s) { return s * (s ~ /T$/ ? 1e12 : s ~ /G$/ ? 1e9 : s ~ /M$/ ? 1e6 : s ~ /K$/ ? 1e3 : 1) }
        function text(b) { return b >= 9.995e11 ? sprintf("%.2fT", b / 1e12) : b >= 9.95e10 ? sprintf("%.0fG", b / 1e9) : b >= 9.95e9 ? sprintf("%.1fG", b / 1e9) : sprintf("%.2fG", b / 1e9) }
        { key = $2 "|" $3 "|" $4 }
        what == "sent" && key !~ /none.none/ || what == "host" && key ~ /none.none/ { next }
        !(key in seen) { seen[key] = 1; order[++n] = key }
        !($1 in known) { known[$1] = 1; column[++m] = $1 }
        { value = what == "device" ? $5 : what == "sent" ? $9 : text(bytes($6) + bytes($7))
          cell[key, $1] = what == "device" && $10 == "yes" ? "**" value "**" : value }
        END {
            printf(what == "sent" ? "| stage |" : "| stage | optimizer | parameters |")
            for (j = 1; j <= m; j++) printf " %s |", column[j]
            printf(what == "sent" ? "\n|---|" : "\n|---|---|---|")
            for (j = 1; j <= m; j++) printf "---|"
            print ""
            for (i = 1; i <= n; i++) {
                split(order[i], k, "|")
                printf(what == "sent" ? "| " k[1] " |" : "| " k[1] " | " k[2] " | " k[3] " |")
                for (j = 1; j <= m; j++) printf " %s |", cell[order[i], column[j]]
                print ""
            }
        }' "$rows"
}

for model in 8b 70b; do
    for ranks in 8 64; do plan $model $ranks | rows_of "${model^^}, $ranks ranks" >>"$rows"; done
done
printf '\nDevice memory of a rank. Bold: fits. Columns 2 and 3 give offload.\n\n' && table device
printf '\nHost memory of a rank, pinned and other. Without offload it is about 20 MB.\n\n' && table host
printf '\nSent by a rank in a step. Offload does not change it.\n\n' && table sent

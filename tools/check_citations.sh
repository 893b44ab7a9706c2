#!/bin/bash
# check_citations.sh - every page of docs/ that a comment cites must exist and have what is cited: algorithms.md 8.5, algorithms.md appendix B,
# architecture.md idea 2, interface.md "Dataset file". Prints what does not; exit status 1 then.
set -u
cd "$(dirname "$0")/.." || exit 1
bad=0
while IFS=: read -r file line cited; do
    page=${cited%%.md*}.md
    section=$(sed -E 's/^[a-z]+\.md[, ]*(section |appendix |idea )?//; s/"//g' <<<"$cited")
    if [ ! -f "docs/$page" ]; then
        echo "$file:$line: cites $page, which docs/ does not have"
    elif [ -n "$section" ] && ! grep -qE "^(#+ )?${section//./\\.}(\.? |$)" "docs/$page"; then
        echo "$file:$line: cites $page \"$section\", which that page does not have"
    else
        continue
    fi
    bad=1
done < <(grep -rnoE '\b[a-z]+\.md([, ]+((section |appendix |idea )?([0-9]+(\.[0-9]+)*|[A-Z](\.[0-9]+)?)\b|"[^"]+"))?' --include='*.[ch]' --include='*.cu' \
    include src cuda tests 2>/dev/null)
exit $bad

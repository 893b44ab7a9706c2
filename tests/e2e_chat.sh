#!/bin/bash
# e2e_chat.sh - dtrain-generate --chat on a terminal.
# QUICK:
. "$(dirname "$0")/e2e.sh"
if ! command -v python3 >/dev/null; then skip chat_on_a_terminal "no python3 for the pseudo-terminal"; exit 0; fi
"$BUILD/tests/test_generate" --make-checkpoint "$tmp/run" >"$out" 2>&1
expect "a small checkpoint is made" test -s "$tmp/run/checkpoints/step-00000007.h5"
# without a terminal; a stop text is the first letter or digit of the answer, which it ends
chat() { printf 'hi\n' | ./dtrain-generate "$tmp/run" --chat --threads 1 --greedy --max-new-tokens 40 "$@" 2>"$out"; }
stop=$(chat | tr -dc 'a-zA-Z0-9' | cut -c1)
expect "the answer has a letter or digit" test -n "$stop"
expect "a stop text is left out of an answer" test "$(chat --stop "$stop")" = "$(chat | sed "s/$stop.*//")"
chat --stop "$stop" >"$tmp/answer"
expect "and ends it" grep -qE ': ([0-9]|[123][0-9]) new tokens' "$out"
# a reader that has left
{ ./dtrain-generate "$tmp/run" --prompt a --num-samples 3000 --max-new-tokens 20 --threads 1 --batch-size 4 2>"$out"; echo $? >"$tmp/code"; } | head -1 >"$tmp/first"
code=$(cat "$tmp/code")
expect_exit "samples for a reader that leaves" 0
expect "no error is reported" test "$(grep -c error "$out")" = 0
timeout 500 python3 tests/chat_terminal.py "$tmp/run" "$tmp/said.json" >"$tmp/results" 2>"$out"
code=$?
cat "$tmp/results"
expect_exit "the conversation goes to its end" 0
! grep -q '^not ok' "$tmp/results" && e2e_done

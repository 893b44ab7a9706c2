#!/bin/bash
# tests/run.sh counts the results of test programs. Stand-ins print what cmocka prints for passed, skipped and failed tests.
# QUICK:
. "$(dirname "$0")/e2e.sh"
mkdir -p "$tmp/build/tests"
program() { # [NAME]: a test program that run.sh starts: a script
    cat >"$tmp/build/tests/${1:-test_core}" && chmod +x "$tmp/build/tests/${1:-test_core}"
}
run_sh() { BUILD=$tmp/build run 0 tests/run.sh test_core; }

program <<'END'
#!/bin/bash
printf '[==========] group: Running 2 test(s).\n[ RUN      ] one\n[       OK ] one\n[ RUN      ] two\n[  SKIPPED ] two\n'
printf '[==========] group: 2 test(s) run.\n[  PASSED  ] 1 test(s).\n'
printf '[  SKIPPED ] group: 1 test(s), listed below:\n[  SKIPPED ] two\n\n 1 SKIPPED TEST(S)\n' >&2
END
ends_saying a_skipped_test_is_no_failure 0 '^1 passed, 0 failed, 1 skipped$' run_sh

program <<'END'
#!/bin/bash
printf '[==========] group: Running 1 test(s).\n[ RUN      ] one\n[  FAILED  ] one\n[==========] group: 1 test(s) run.\n[  PASSED  ] 0 test(s).\n'
printf '\0\0[  ERROR   ] --- the cause\n[  FAILED  ] group: 1 test(s), listed below:\n[  FAILED  ] one\n' >&2
exit 1
END
ends a_failed_test_fails_the_run 1 run_sh
expect_text a_cause_after_null_bytes_is_shown 'the cause'
expect_text a_failed_test_is_counted '^0 passed, 1 failed, 0 skipped$'

# Two programs that wait for each other, half a minute at most: with TEST_JOBS=2 they meet, one after the other they never do.
for name in test_core test_io; do
    program $name <<END
#!/bin/bash
echo '[==========] group: Running 1 test(s).'
touch "$tmp/$name.here"
for _ in \$(seq 300); do [ ! -e "$tmp/test_core.here" ] || [ ! -e "$tmp/test_io.here" ] || { echo '[       OK ] meet'; exit 0; }; sleep 0.1; done
exit 1
END
done
TEST_JOBS=2 BUILD=$tmp/build prints tests_run_beside_each_other '^2 passed, 0 failed, 0 skipped$' run 0 tests/run.sh test_core test_io

# Tiers and slices: nothing is lost between them.
list() { env LIST=1 "$@" tests/run.sh | sort; }
list TIER=full >"$tmp/full"
list TIER=quick >"$tmp/quick"
for k in 0 1 2; do list TIER=full SLICE=$k/3; done | sort | expect "the slices together are the full tier, each test once" cmp - "$tmp/full"
expect "the quick tier is smaller" test "$(wc -l <"$tmp/quick")" -lt "$(wc -l <"$tmp/full")"
expect "the quick tier has every unit test" cmp <(grep -c '^test_[a-z0-9_]*$' "$tmp/quick") <(ls tests/test_*.c | wc -l)
expect "the quick tier has every program of several ranks" cmp <(grep -o '^mpi_[a-z0-9_]*' "$tmp/quick" | sort -u) <(basename -s .c tests/mpi_*.c | sort)

# Interrupted, it leaves nothing running.
program <<END
#!/bin/bash
echo \$\$ >"$tmp/pid"
exec sleep 60
END
BUILD=$tmp/build tests/run.sh test_core >/dev/null 2>&1 &
for _ in $(seq 100); do [ ! -s "$tmp/pid" ] || break; sleep 0.1; done
kill -TERM $!
wait $!
expect "interrupted, it says so" [ $? = 130 ]
for _ in $(seq 100); do kill -0 "$(cat "$tmp/pid")" 2>/dev/null || break; sleep 0.1; done
expect "started processes have ended" sh -c "! kill -0 $(cat "$tmp/pid") 2>/dev/null"
e2e_done

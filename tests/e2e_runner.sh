#!/bin/bash
# tests/run.sh counts what test programs say: programs that say what cmocka says where it passes, skips and fails.
. "$(dirname "$0")/e2e.sh"
mkdir -p "$tmp/build/tests"
program() { # the test program that run.sh starts: a script
    cat >"$tmp/build/tests/test_core" && chmod +x "$tmp/build/tests/test_core"
}
run_sh() { BUILD=$tmp/build run 0 tests/run.sh test_core; }

program <<'END'
#!/bin/bash
printf '[==========] group: Running 2 test(s).\n[ RUN      ] one\n[       OK ] one\n[ RUN      ] two\n[  SKIPPED ] two\n'
printf '[==========] group: 2 test(s) run.\n[  PASSED  ] 1 test(s).\n'
printf '[  SKIPPED ] group: 1 test(s), listed below:\n[  SKIPPED ] two\n\n 1 SKIPPED TEST(S)\n' >&2
END
run_sh
expect_exit a_skipped_test_is_no_failure 0
expect_text a_skipped_test_is_counted_once '^1 passed, 0 failed, 1 skipped$'

program <<'END'
#!/bin/bash
printf '[==========] group: Running 1 test(s).\n[ RUN      ] one\n[  FAILED  ] one\n[==========] group: 1 test(s) run.\n[  PASSED  ] 0 test(s).\n'
printf '\0\0[  ERROR   ] --- the cause\n[  FAILED  ] group: 1 test(s), listed below:\n[  FAILED  ] one\n' >&2
exit 1
END
run_sh
expect_exit a_failed_test_fails_the_run 1
expect_text a_cause_after_null_bytes_is_shown 'the cause'
expect_text a_failed_test_is_counted '^0 passed, 1 failed, 0 skipped$'
e2e_done

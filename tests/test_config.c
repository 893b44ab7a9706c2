/* test_config.c - the configuration: accepted values, and that written files read back. test_config_errors.c has the
 * refused values.
 *
 * With --markdown as argument: prints docs/keys.md (make docs). */

#include "cases.h"
#include "config_fixture.h"

/* ---- accepted values ---- */

TEST(an_empty_file_gives_the_defaults)
{
    dt_config cfg;
    assert_int_equal(parse(&cfg, "", NULL), DT_OK);
    assert_string_equal(cfg.run_task, "pretrain");
    assert_string_equal(cfg.run_output_dir, "");
    assert_int_equal(cfg.run_seed, 42);
    assert_true(cfg.optimizer_lr == 3e-4 && cfg.data_shuffle && !cfg.data_drop_last);
    assert_true(cfg.zero_reduce_bucket_size == 2000000000);
    assert_false(dt_config_given(&cfg, "run", "seed"));
    dt_config_free(&cfg);
    dt_config_free(&cfg);
}

TEST(values_of_every_kind_are_read)
{
    const char *text = "\xef\xbb\xbf; a comment\n# another\n   ; an indented one\n\n[run]\r\nseed=7\r\ntask = sft ; "
                       "what to do\noutput_dir: /tmp/a b\n"
                       "[optimizer]\nlr = 1e-3\n[data]\nshuffle = No\ntrain = a.h5, "
                       "b;c.h5:2\n[zero]\nreduce_bucket_size = 5e8\n[run]\nthreads=3";
    dt_config cfg;
    assert_int_equal(parse(&cfg, text, NULL), DT_OK);
    assert_true(cfg.run_seed == 7 && cfg.run_threads == 3 && cfg.optimizer_lr == 1e-3 && !cfg.data_shuffle);
    assert_true(cfg.zero_reduce_bucket_size == 500000000);
    assert_string_equal(cfg.run_task, "sft");
    assert_string_equal(cfg.run_output_dir, "/tmp/a b");
    assert_string_equal(cfg.data_train, "a.h5, b;c.h5:2");
    assert_true(dt_config_given(&cfg, "data", "train") && !dt_config_given(&cfg, "data", "validation"));
    dt_config_free(&cfg);
}

TEST(booleans_have_four_spellings)
{
    const char *const words[] = {"true", "yes", "on", "1", "TRUE", "false", "no", "off", "0", "Off"};
    for (int i = 0; i < 10; i++) {
        char override[40];
        dt_config cfg;
        snprintf(override, sizeof override, "run.reproducible=%s", words[i]);
        assert_int_equal(parse(&cfg, "", override), DT_OK);
        assert_int_equal(cfg.run_reproducible, i < 5);
        dt_config_free(&cfg);
    }
}

TEST(integers_may_be_written_with_an_exponent)
{
    const struct {
        const char *text;
        int64_t value;
    } cases[] = {{"5e8", 500000000}, {"1.5e3", 1500}, {"+12", 12}, {"007", 7}, {"9223372036854775807", INT64_MAX},
                 {"12.0", 12}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char override[60];
        dt_config cfg;
        snprintf(override, sizeof override, "run.seed=%s", cases[i].text);
        assert_int_equal(parse(&cfg, "", override), DT_OK);
        assert_true(cfg.run_seed == cases[i].value);
        dt_config_free(&cfg);
    }
}

TEST(the_last_command_line_value_wins)
{
    const char *const overrides[] = {"batch.micro_batch_size=2", "data.train = x=y.h5 ", "batch.micro_batch_size=3"};
    dt_config cfg;
    char where[100];
    assert_int_equal(
        dt_config_parse(&cfg, "input.ini", "[run]\nseed = 1\n[batch]\nmicro_batch_size = 1\n", 3, overrides),
        DT_ERR_USAGE);
    assert_string_equal(dt_error_message(), "command line: data.train : unknown key; the nearest is train");
    dt_error_clear();
    const char *const good[] = {"batch.micro_batch_size=2", "data.train= x=y.h5 ", "batch.micro_batch_size=3"};
    assert_int_equal(dt_config_parse(&cfg, "input.ini", "[run]\nseed = 1\n[batch]\nmicro_batch_size = 1\n", 3, good),
                     DT_OK);
    assert_int_equal(cfg.batch_micro_batch_size, 3);
    assert_string_equal(cfg.data_train, "x=y.h5");
    assert_string_equal(dt_config_where(&cfg, "run", "seed", where, sizeof where), "input.ini:2: [run] seed");
    assert_string_equal(dt_config_where(&cfg, "batch", "micro_batch_size", where, sizeof where),
                        "command line: batch.micro_batch_size");
    assert_string_equal(dt_config_where(&cfg, "zero", "stage", where, sizeof where),
                        "input.ini: [zero] stage (default)");
    dt_config_free(&cfg);
}

TEST(environment_variables_are_replaced)
{
    dt_config cfg;
    setenv("DTRAIN_TEST_DIR", "/scratch/me", 1);
    setenv("DTRAIN_TEST_N", "12", 1);
    assert_int_equal(parse(&cfg,
                           "[run]\noutput_dir = ${DTRAIN_TEST_DIR}/run-${DTRAIN_TEST_N}$\nseed = ${DTRAIN_TEST_N}\n",
                           "data.train=${DTRAIN_TEST_DIR}"),
                     DT_OK);
    assert_string_equal(cfg.run_output_dir, "/scratch/me/run-12$");
    assert_string_equal(cfg.data_train, "/scratch/me");
    assert_int_equal(cfg.run_seed, 12);
    dt_config_free(&cfg);
}

TEST(paths_expand_the_home_directory)
{
    dt_config cfg;
    setenv("HOME", "/home/me", 1);
    const char *text =
        "[run]\noutput_dir = ~/runs/a\n[model]\npath = ~\n[data]\ntrain = a.h5:2, ~/b*.h5, \"~/c.h5\"\n"
        "[checkpoint]\nresume = '~/x.h5'\n[grpo]\nreward_funcs = length, model:~/rm, command:~/f $HOME\n";
    assert_int_equal(parse(&cfg, text, "zero.nvme_path=~/swap"), DT_OK);
    assert_string_equal(cfg.run_output_dir, "/home/me/runs/a");
    assert_string_equal(cfg.model_path, "/home/me");
    assert_string_equal(cfg.data_train, "a.h5:2, /home/me/b*.h5, \"/home/me/c.h5\"");
    assert_string_equal(cfg.checkpoint_resume, "/home/me/x.h5");
    assert_string_equal(cfg.grpo_reward_funcs, "length, model:/home/me/rm, command:~/f $HOME");
    assert_string_equal(cfg.zero_nvme_path, "/home/me/swap");
    dt_config_free(&cfg);
}

TEST(paths_that_would_be_taken_literally_are_refused)
{
    static const char *const cases[][2] = {
        {"run.output_dir=$SCRATCH/a",
         "command line: run.output_dir: $SCRATCH in a path is not expanded: expected ${SCRATCH}, found '$SCRATCH/a'"},
        {"model.path=/scratch/$USER/a", "command line: model.path: $USER in a path"},
        {"data.train=a.h5, $D/b.h5", "command line: data.train: $D in a path"},
        {"dpo.reference_path=~other/a", "command line: dpo.reference_path: expected ~/... or a full path"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_config cfg;
        assert_int_equal(parse(&cfg, "", cases[i][0]), DT_ERR_USAGE);
        if (!strstr(dt_error_message(), cases[i][1])) fail_msg("%s", dt_error_message());
        dt_error_clear();
    }
}

static void count_change(void *self, const char *section, const char *key, const char *before, const char *now)
{
    ++*(int *)self;
}

TEST(written_paths_are_full_and_their_spelling_is_no_change)
{
    dt_config a, b;
    char cwd[1000], want[4000];
    int n = 0;
    assert_non_null(getcwd(cwd, sizeof cwd));
    const char *text = "[run]\noutput_dir = runs/a/\n[model]\ntokenizer = bytes\nchat_template = tests/run.sh\n"
                       "[data]\ntrain = ./a.h5:2,/b.h5 , c.h5\n[grpo]\nreward_funcs = accuracy, model:rm, "
                       "command:python3 tests/run.sh no/file\n";
    assert_int_equal(parse(&a, text, NULL), DT_OK);
    char *written = dt_config_text(&a);
    snprintf(want, sizeof want, "train = %s/a.h5:2,/b.h5 , %s/c.h5\n", cwd, cwd);
    assert_non_null(strstr(written, want));
    snprintf(want, sizeof want, "output_dir = %s/runs/a\n", cwd);
    assert_non_null(strstr(written, want));
    snprintf(want, sizeof want, "tokenizer = bytes\nchat_template = %s/tests/run.sh\n", cwd);
    assert_non_null(strstr(written, want));
    snprintf(want, sizeof want, "reward_funcs = accuracy, model:%s/rm, command:python3 %s/tests/run.sh no/file\n", cwd,
             cwd);
    assert_non_null(strstr(written, want));
    assert_non_null(strstr(written, "resume = auto\n"));
    assert_int_equal(parse(&b, written, NULL), DT_OK);
    dt_config_compare(&a, &b, count_change, &n);
    assert_int_equal(n, 0);
    free(written);
    dt_config_free(&a), dt_config_free(&b);
}

/* A line of exactly n bytes: "train = x,x,...". */
TEST(long_lines_are_read_whole)
{
    const size_t lengths[] = {188, 189, 190, 191, 198, 199, 200, 201, 1000, 3800, 262100};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        static char line[262200], text[262300];
        dt_config cfg;
        fill_line(line, lengths[i]);
        snprintf(text, sizeof text, "[data]\nseq_len = 8\n%s ; and a comment ; more\nprefetch = 1\n", line);
        assert_int_equal(parse(&cfg, text, NULL), DT_OK);
        assert_string_equal(cfg.data_train, line + 8);
        assert_true(cfg.data_seq_len == 8 && cfg.data_prefetch == 1);
        dt_config_free(&cfg);
    }
}

TEST(a_long_comment_is_skipped)
{
    char text[4200];
    dt_config cfg;
    memset(text, ' ', sizeof text);
    memcpy(text, "[run]\n;", 7);
    for (size_t i = 10; i < 3000; i++) text[i] = "seed = 1 "[i % 9];
    memcpy(text + 3000, "\nseed = 9\n", 11);
    assert_int_equal(parse(&cfg, text, NULL), DT_OK);
    assert_int_equal(cfg.run_seed, 9);
    dt_config_free(&cfg);
}

TEST(values_may_be_written_as_elsewhere)
{
    const struct {
        const char *override, *key, *text;
    } cases[] = {
        {"precision.dtype=bfloat16", "precision.dtype", "bf16"},
        {"precision.dtype=BF16", "precision.dtype", "bf16"},
        {"precision.dtype=float16", "precision.dtype", "fp16"},
        {"precision.dtype=float32", "precision.dtype", "fp32"},
        {"checkpoint.export_dtype=half", "checkpoint.export_dtype", "fp16"},
        {"scheduler.type=constant_with_warmup", "scheduler.type", "constant"},
        {"run.task=\"sft\"", "run.task", "sft"},
        {"run.output_dir='/my runs/a'", "run.output_dir", "/my runs/a"},
        {"run.output_dir=\" '/x' \"", "run.output_dir", "/x"},
        {"vision.image_token='it''s", "vision.image_token", "'it''s"},
        {"data.train=\"/a.h5\", '/b.h5'", "data.train", "\"/a.h5\", '/b.h5'"},
        {"run.max_steps=1_000", "run.max_steps", "1000"},
        {"run.max_steps=1e6", "run.max_steps", "1000000"},
        {"run.shuffle=True", NULL, NULL},
        {"data.shuffle=True", "data.shuffle", "true"},
        {"run.time_limit=90", "run.time_limit", "90"},
        {"run.time_limit=1:30", "run.time_limit", "90"},
        {"run.time_limit=01:00:05", "run.time_limit", "3605"},
        {"run.time_limit=2-00:00:00", "run.time_limit", "172800"},
        {"comm.timeout=30m", "comm.timeout", "1800"},
        {"run.time_limit=1.5h", "run.time_limit", "5400"},
        {"model.hidden_size=1_024", "model.hidden_size", "1024"},
        {"model.rope_theta=500000.0", "model.rope_theta", "500000"},
        {"model.tie_word_embeddings=True", "model.tie_word_embeddings", "true"},
        {"model.sliding_window=null", "model.sliding_window", "null"},
        {"model.sliding_window=", "model.sliding_window", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_config a, b;
        char line[80];
        if (!cases[i].key) {
            assert_int_equal(parse(&a, "", cases[i].override), DT_ERR_USAGE);
            continue;
        }
        if (parse(&a, "", cases[i].override) != DT_OK) fail_msg("%s", dt_error_message());
        char *text = dt_config_text(&a), *again;
        const char *name = strchr(cases[i].key, '.') + 1;
        snprintf(line, sizeof line, "\n%s =%s%s\n", name, *cases[i].text ? " " : "", cases[i].text);
        if (!strstr(text, line)) fail_msg("%s: not%s", cases[i].override, line);
        assert_int_equal(parse(&b, text, NULL), DT_OK);
        assert_string_equal(again = dt_config_text(&b), text);
        free(text), free(again);
        dt_config_free(&a), dt_config_free(&b);
    }
}

TEST(an_overridden_value_needs_no_environment_variable)
{
    const char *const overrides[] = {"data.train=other.h5"};
    const char *text = "[data]\ntrain = ${DTRAIN_TEST_UNSET}/a\n";
    dt_config cfg;
    unsetenv("DTRAIN_TEST_UNSET");
    dt_error_clear();
    assert_int_equal(dt_config_parse(&cfg, "input.ini", text, 1, overrides), DT_OK);
    assert_string_equal(cfg.data_train, "other.h5");
    assert_false(dt_config_doubted(&cfg, "data", "train"));
    dt_config_free(&cfg);
    assert_fails(dt_config_parse(&cfg, "input.ini", text, 0, NULL), DT_ERR_USAGE, "");
}

TEST(keys_with_mistakes_are_doubted_and_the_rest_is_read)
{
    const char *const overrides[] = {"optimzer.lr=1", "learning_rate=2", "run.epochs=3"};
    dt_config cfg;
    dt_mistakes mistakes = {0};
    unsetenv("DTRAIN_TEST_UNSET");
    dt_error_clear();
    assert_int_equal(dt_config_read(&cfg, "input.ini",
                                    "[run]\nsede = 1\nseed = 5\nthreads = x\n[data]\ntrain = ${DTRAIN_TEST_UNSET}/a\n",
                                    3, overrides, DT_VARIABLES_MUST_BE_SET, &mistakes),
                     DT_OK);
    assert_int_equal(mistakes.n, 5);
    assert_true(cfg.run_seed == 5 && cfg.run_epochs == 3 && cfg.run_threads == 0 && cfg.optimizer_lr == 3e-4);
    assert_true(dt_config_doubted(&cfg, "run", "threads") && dt_config_doubted(&cfg, "optimizer", "lr"));
    assert_true(dt_config_doubted(&cfg, "data", "train") && !dt_config_doubted(&cfg, "data", "validation"));
    assert_true(dt_config_doubted(&cfg, "run", NULL) && !dt_config_doubted(&cfg, "model", NULL));
    assert_fails(dt_mistakes_end(&mistakes), DT_ERR_USAGE, "DTRAIN_TEST_UNSET is not set");
    dt_config_free(&cfg);

    assert_int_equal(dt_config_read(&cfg, "input.ini", "[data]\ntrain = ${DTRAIN_TEST_UNSET}/a\n", 0, NULL,
                                    DT_VARIABLES_MAY_BE_UNSET, &mistakes),
                     DT_OK);
    assert_true(mistakes.n == 0 && dt_config_doubted(&cfg, "data", "train"));
    dt_config_free(&cfg);
}

TEST(a_removed_key_without_a_value_is_ignored)
{
    dt_config cfg;
    assert_int_equal(parse(&cfg, "[lora]\nllm_int8_threshold =\nr = 4\n", NULL), DT_OK);
    assert_int_equal(cfg.lora_r, 4);
    dt_config_free(&cfg);
    assert_fails(parse(&cfg, "[lora]\nllm_int8_threshold = 6\nr = 4\n", NULL), DT_ERR_USAGE, "llm_int8_threshold");
}

TEST(a_recorded_configuration_may_have_keys_of_another_version)
{
    static const char *const texts[] = {
        "[optimizer]\nlr = 2e-3\n[lora]\nllm_int8_threshold = 6\nr = 4\n",
        "[new]\nkey = 1\n[optimizer]\nlr = 2e-3\nlr_2 =\n[lora]\nr = 4\ninit = another\n[data]\ntrain = "
        "${DTRAIN_TEST_UNSET}\n",
    };
    dt_config cfg;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_int_equal(dt_config_read_recorded(&cfg, "step-2.h5", texts[i]), DT_OK);
        assert_true(cfg.optimizer_lr == 2e-3 && cfg.lora_r == 4);
        assert_string_equal(cfg.lora_init, "kaiming");
        assert_string_equal(dt_error_message(), "");
        dt_config_free(&cfg);
    }
    assert_int_equal(dt_config_read_recorded(&cfg, "step-2.h5", NULL), DT_OK);
    assert_false(dt_config_given(&cfg, "lora", "r"));
    dt_config_free(&cfg);
}

TEST(a_list_of_mistakes_has_each_once_and_the_lowest_exit_code)
{
    dt_mistakes m = {0};
    dt_mistakes_add(&m, DT_OK);
    assert_int_equal(dt_mistakes_end(&m), DT_OK);
    dt_mistakes_add(&m, dt_fail(DT_ERR_WRITE, "disk"));
    dt_mistakes_add(&m, dt_fail(DT_ERR_DATA, "b"));
    dt_mistakes_add(&m, dt_fail(DT_ERR_DATA, "a b"));
    dt_mistakes_add(&m, dt_fail(DT_ERR_DATA, "b"));
    assert_int_equal(m.n, 3);
    assert_int_equal(dt_mistakes_end(&m), DT_ERR_DATA);
    assert_string_equal(dt_error_message(), "disk\nb\na b");
}

/* ---- writing ---- */

static void same_values(const dt_config *a, const dt_config *b)
{
#define SAME_NUMBER(s, k, ...) assert_true(a->s##_##k == b->s##_##k);
#define SAME_TEXT(s, k, ...) assert_string_equal(a->s##_##k, b->s##_##k);
    DT_CONFIG_KEYS(SAME_NUMBER, SAME_NUMBER, SAME_NUMBER, SAME_TEXT, SAME_TEXT, SAME_TEXT)
}

TEST(every_key_survives_being_written)
{
    const char *text =
        "[run]\noutput_dir=/#a; "
        "b;c\nseed=9007199254740993\nreproducible=yes\n[optimizer]\nlr=0.1234567890123456789\neps=1e-300\n"
        "[model]\nrope_scaling={\"rope_type\": \"llama3\", \"factor\": 8.0}\n[zero]\nstage=3\n";
    dt_config a, b;
    assert_int_equal(parse(&a, text, "optimizer.weight_decay=0.1"), DT_OK);
    char *written = dt_config_text(&a), *again;
    assert_int_equal(parse(&b, written, NULL), DT_OK);
    same_values(&a, &b);
    assert_true(dt_config_given(&b, "lora", "alpha") && !dt_config_differs(&b, "lora", "alpha"));
    assert_true(dt_config_differs(&b, "optimizer", "eps") && !dt_config_differs(&b, "optimizer", "type"));
    assert_true(!dt_config_differs(&b, "grpo", "delta") && !dt_config_differs(&b, "data", "train"));
    assert_string_equal(again = dt_config_text(&b), written);
    assert_non_null(strstr(written, "weight_decay = 0.1\n"));
    assert_non_null(strstr(written, "reproducible = true\n"));
#define IS_THERE(s, k, ...) assert_non_null(strstr(written, "\n" #k " ="));
    DT_CONFIG_KEYS(IS_THERE, IS_THERE, IS_THERE, IS_THERE, IS_THERE, IS_THERE)
    free(again);
    free(written);
    dt_config_free(&a);
    dt_config_free(&b);
}

TEST(what_was_given_survives_being_shared)
{
    dt_config a, b;
    assert_int_equal(parse(&a, "[lora]\nr = 4\ndropout = 0\n[zero]\nstage = 3\n", "optimizer.lr=0.1"), DT_OK);
    assert_int_equal(dt_config_set(&a, "comm", "timeout", "77"), DT_OK);
    char *shared = dt_config_given_text(&a);
    assert_string_equal(shared, "[optimizer]\nlr = 0.1\n\n[zero]\nstage = 3\n\n[comm]\ntimeout = 77\n\n"
                                "[lora]\nr = 4\ndropout = 0\n");
    assert_int_equal(parse(&b, shared, NULL), DT_OK);
    same_values(&a, &b);
    assert_true(dt_config_given(&b, "lora", "dropout") && !dt_config_given(&b, "lora", "alpha"));
    free(shared);
    dt_config_free(&a);
    dt_config_free(&b);
}

TEST(the_longest_value_survives_being_written)
{
    enum { LINE = 1 << 18, LONGEST = LINE - 8 }; /* "train = " and the value fill a line */
    char *override = malloc(LINE + 100);
    dt_config a, b;
    strcpy(override, "data.train=");
    memset(override + 11, 'x', LONGEST);
    override[11 + LONGEST] = '\0';
    assert_int_equal(parse(&a, "", override), DT_OK);
    char *written = dt_config_text(&a);
    assert_int_equal(parse(&b, written, NULL), DT_OK);
    same_values(&a, &b);
    free(written);
    dt_config_free(&a);
    dt_config_free(&b);
    strcat(override, "x");
    assert_int_equal(parse(&a, "", override), DT_ERR_USAGE);
    assert_string_equal(dt_error_message(),
                        "command line: data.train: the value is too long: expected at most 262136 bytes, found 262137");
    dt_error_clear();
    free(override);
}

TEST(setting_a_key_keeps_its_origin_and_old_strings)
{
    dt_config cfg;
    char where[100];
    assert_int_equal(parse(&cfg, "[zero]\nstage = auto\n", NULL), DT_OK);
    const char *old = cfg.zero_stage;
    assert_int_equal(dt_config_set(&cfg, "zero", "stage", "2"), DT_OK);
    assert_int_equal(dt_config_set(&cfg, "batch", "micro_batch_size", "4"), DT_OK);
    assert_string_equal(cfg.zero_stage, "2");
    assert_string_equal(old, "auto");
    assert_int_equal(cfg.batch_micro_batch_size, 4);
    assert_string_equal(dt_config_where(&cfg, "zero", "stage", where, sizeof where), "input.ini:2: [zero] stage");
    assert_false(dt_config_given(&cfg, "batch", "micro_batch_size"));
    assert_int_equal(dt_config_set(&cfg, "zero", "stage", "7"), DT_ERR_USAGE);
    assert_string_equal(cfg.zero_stage, "2");
    dt_error_clear();
    assert_fails(dt_config_set(&cfg, "zero", "stge", "2"), DT_ERR_USAGE, "");
    char *text = dt_config_text(&cfg);
    assert_non_null(strstr(text, "micro_batch_size = 4\n"));
    free(text);
    dt_config_free(&cfg);
}

static char *printed(dt_err (*print)(FILE *, const char *), const char *filter, dt_err *err)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    *err = print(out, filter);
    fclose(out);
    return text;
}

TEST(keys_are_printed_by_section_and_by_name)
{
    dt_err err;
    char *text = printed(dt_config_print_keys, "batch.micro_batch_size", &err);
    assert_int_equal(err, DT_OK);
    assert_string_equal(text,
                        "[batch]\n  micro_batch_size             integer from 0 to 2147483647, samples; default: 0\n"
                        "      samples that a rank processes at a time; 0: computed from the other two keys\n");
    free(text);
    text = printed(dt_config_print_keys, "zero", &err);
    assert_true(err == DT_OK && strstr(text, "[zero]") && strstr(text, "stage ") && !strstr(text, "[run]"));
    free(text);
    text = printed(dt_config_print_keys, "warmup_steps", &err);
    assert_true(err == DT_OK && strstr(text, "[scheduler]\n  warmup_steps "));
    free(text);
    text = printed(dt_config_print_keys, "learning_rate", &err);
    assert_true(err == DT_OK && strstr(text, "learning_rate is optimizer.lr here\n\n[optimizer]\n  lr "));
    free(text);
    text = printed(dt_config_print_keys, "", &err);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) assert_true(end - line <= 120);
    assert_true(err == DT_OK && strstr(text, "[run]") && strstr(text, "[log]"));
    free(text);
    const struct {
        const char *filter, *message;
    } bad[] = {
        {"rnu", "--keys rnu: unknown section; the nearest is [run]"},
        {"run.sed", "--keys run.sed: unknown key; the nearest is seed"},
        {"warmup_step", "--keys warmup_step: unknown key; the nearest is warmup_steps in [scheduler]"},
        {"fp16_full_eval", "--keys fp16_full_eval: remove it: evaluation uses precision.dtype, too"},
        {"zzz", "--keys zzz: no section or key has this name; --keys without a name lists all"},
        {"optimiser", "--keys optimiser: unknown section; the nearest is [optimizer]"},
        {"step",
         "--keys step: unknown key; these contain it in their name or meaning: run.max_steps, run.max_skipped_steps, "
         "data.validation_steps, batch.gradient_accumulation_steps, optimizer.muon_ns_steps, "
         "scheduler.warmup_steps, checkpoint.save_steps, eval.steps, dpo.sync_reference_steps, "
         "kto.sync_reference_steps, "
         "grpo.steps_per_generation, grpo.sync_reference_steps, log.logging_steps"},
        {"GPU", "--keys GPU: unknown key; these contain it in their name or meaning: run.device, run.self_check, "
                "run.cuda_graphs, model.attention"},
        {"template", "--keys template: unknown key; these contain it in their name or meaning: model.chat_template"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        free(printed(dt_config_print_keys, bad[i].filter, &err));
        assert_int_equal(err, DT_ERR_USAGE);
        assert_string_equal(dt_error_message(), bad[i].message);
        dt_error_clear();
    }
}

static dt_err markdown(FILE *out, const char *unused)
{
    dt_config_print_markdown(out);
    return DT_OK;
}

TEST(the_reference_page_is_up_to_date)
{
    dt_err err;
    char *want = printed(markdown, "", &err), *have = NULL;
    assert_int_equal(dt_config_read_file("docs/keys.md", &have), DT_OK); /* tests run at the top of the tree */
    assert_true(strcmp(want, have) == 0);                                /* otherwise: make docs */
    free(want);
    free(have);
}

TEST(lists_are_split_at_commas)
{
    const struct {
        const char *text;
        int n;
        const char *items[3];
    } cases[] = {{"", 0, {NULL}},
                 {" , ,", 0, {NULL}},
                 {"a", 1, {"a"}},
                 {" a b ,c,, d", 3, {"a b", "c", "d"}},
                 {"\"a b\", 'c'", 2, {"a b", "c"}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char **items;
        int n;
        assert_int_equal(dt_config_split(cases[i].text, &items, &n), DT_OK);
        assert_int_equal(n, cases[i].n);
        for (int j = 0; j < n; j++) assert_string_equal(items[j], cases[i].items[j]);
        dt_list_free(items, n);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--markdown") == 0) {
        dt_config_print_markdown(stdout);
        return 0;
    }
    return run_listed(NULL, NULL, NULL);
}

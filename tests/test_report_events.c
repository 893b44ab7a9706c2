/* test_report_events.c - event files of TensorBoard; their reader is written here from the format's description. */
#include "cases.h"
#include "report_fixture.h"
#include <time.h>

#include "../src/report/protobuf.h"

TEST(crc32c_has_the_known_values)
{
    (void)state; /* RFC 3720, appendix B.4 */
    uint8_t bytes[32] = {0};
    assert_int_equal(dt_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(dt_crc32c(bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, 32);
    assert_int_equal(dt_crc32c(bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    assert_int_equal(dt_crc32c(bytes, 32), 0x46dd794eu);
    assert_int_equal(dt_crc32c("", 0), 0);
}

static uint64_t little(const uint8_t *p, int nbytes)
{
    uint64_t v = 0;
    for (int i = nbytes; i-- > 0;) v = v << 8 | p[i];
    return v;
}

static uint32_t unmask(uint32_t masked)
{
    const uint32_t rot = masked - 0xa282ead8u;
    return rot >> 17 | rot << 15;
}

static uint64_t varint(const uint8_t **p)
{
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        const uint8_t b = *(*p)++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) return v;
    }
}

struct field {
    int number;
    uint64_t value;
    const uint8_t *bytes;
};

static struct field next_field(const uint8_t **p)
{
    const uint64_t key = varint(p);
    struct field f = {.number = (int)(key >> 3)};
    const int wire = key & 7, fixed = wire == 1 ? 8 : wire == 5 ? 4 : 0;
    assert_true(wire == 0 || wire == 1 || wire == 2 || wire == 5);
    if (fixed)
        f.value = little(*p, fixed);
    else
        f.value = varint(p);
    f.bytes = *p;
    *p += fixed ? (uint64_t)fixed : wire == 2 ? f.value : 0;
    return f;
}

struct event {
    double wall_time;
    int64_t step;
    char version[32];
    int session_status, n_values;
    char tag[16][40];
    float value[16];
    char plugin[16][16], text[16][400]; /* of a value with a tensor: its metadata's plugin, its one string */
};

static struct field inner(const uint8_t **p, int number)
{
    const struct field f = next_field(p);
    assert_int_equal(f.number, number);
    return f;
}

static void read_metadata(struct event *e, const uint8_t *p)
{
    const struct field plugin = inner(&p, 1);
    const uint8_t *in = plugin.bytes, *end = in + plugin.value;
    const struct field name = inner(&in, 1);
    snprintf(e->plugin[e->n_values], 16, "%.*s", (int)name.value, (const char *)name.bytes);
    assert_ptr_equal(in, end);
}

static void read_tensor(struct event *e, const uint8_t *p, const uint8_t *end)
{
    assert_int_equal(inner(&p, 1).value, 7); /* DT_STRING */
    const struct field shape = inner(&p, 2), text = inner(&p, 8);
    assert_memory_equal(shape.bytes, "\x12\x02\x08\x01", 4); /* one dimension of size 1 */
    snprintf(e->text[e->n_values], 400, "%.*s", (int)text.value, (const char *)text.bytes);
    assert_ptr_equal(p, end);
}

static void read_value(struct event *e, const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        const struct field f = next_field(&p);
        if (f.number == 1) snprintf(e->tag[e->n_values], 40, "%.*s", (int)f.value, (const char *)f.bytes);
        if (f.number == 8) read_tensor(e, f.bytes, f.bytes + f.value);
        if (f.number == 9) read_metadata(e, f.bytes);
        if (f.number == 2) {
            const union {
                uint32_t u;
                float f;
            } x = {.u = (uint32_t)f.value};
            e->value[e->n_values] = x.f;
        }
    }
    assert_ptr_equal(p, end);
    e->n_values++;
}

static struct event read_event(const uint8_t *p, const uint8_t *end)
{
    struct event e = {0};
    while (p < end) {
        const struct field f = next_field(&p);
        const union {
            uint64_t u;
            double d;
        } wall = {.u = f.value};
        if (f.number == 1) e.wall_time = wall.d;
        if (f.number == 2) e.step = (int64_t)f.value;
        if (f.number == 3) snprintf(e.version, sizeof e.version, "%.*s", (int)f.value, (const char *)f.bytes);
        if (f.number == 7) e.session_status = f.bytes[0] == 0x08 ? f.bytes[1] : -1;
        for (const uint8_t *v = f.bytes; f.number == 5 && v < f.bytes + f.value;) {
            const struct field value = next_field(&v);
            assert_int_equal(value.number, 1);
            read_value(&e, value.bytes, value.bytes + value.value);
        }
    }
    assert_ptr_equal(p, end);
    return e;
}

/* Frames and both checksums of each; returns the number of events. */
static int read_events(const char *path, struct event *events, int max)
{
    size_t nbytes;
    uint8_t *data = (uint8_t *)slurp(path, &nbytes);
    assert_non_null(data);
    int n = 0;
    for (size_t at = 0; at < nbytes;) {
        assert_true(at + 12 <= nbytes && n < max);
        const uint64_t len = little(data + at, 8);
        assert_int_equal(unmask((uint32_t)little(data + at + 8, 4)), dt_crc32c(data + at, 8));
        assert_true(len <= nbytes - at - 16);
        assert_int_equal(unmask((uint32_t)little(data + at + 12 + len, 4)), dt_crc32c(data + at + 12, len));
        events[n++] = read_event(data + at + 12, data + at + 12 + len);
        at += 16 + len;
    }
    free(data);
    return n;
}

static int event_files(const struct fixture *f, char paths[][400], int max)
{
    struct dirent **entries;
    const int n = scandir(f->dir, &entries, NULL, alphasort);
    int found = 0;
    for (int i = 0; i < n; i++) {
        if (strncmp(entries[i]->d_name, "events.out.tfevents.", 20) == 0 && found < max)
            snprintf(paths[found++], 400, "%s/%s", f->dir, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return found;
}

TEST_WITH(events_are_framed_and_read_back, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = open_report(f, "tensorboard", 0);
    const dt_metric more[] = {{"dpo/accuracy", 0.75}, {"accuracy", 0.5}, {"validation_accuracy", 0.25}};
    dt_train_record rec = record_of(300);
    rec.more = more;
    rec.n_more = 2;
    assert_int_equal(dt_report_train(r, &rec), DT_OK);
    assert_int_equal(dt_report_validation(r, 300, 1.5, more + 1, 2), DT_OK);
    dt_report_close(r);

    char paths[2][400];
    struct event e[8];
    assert_int_equal(event_files(f, paths, 2), 1);
    assert_int_equal(read_events(paths[0], e, 8), 4);
    assert_string_equal(e[0].version, "brain.Event:2");
    assert_true(e[0].wall_time > 1.6e9 && e[1].wall_time >= e[0].wall_time);
    assert_int_equal(e[1].session_status, 1);
    assert_int_equal(e[1].step, 0);
    assert_int_equal(e[2].step, 300);
    assert_string_equal(e[2].tag[0], "Loss/train");
    assert_true(e[2].value[0] == (float)rec.loss);
    assert_string_equal(e[2].tag[e[2].n_values - 2], "dpo/accuracy");
    assert_string_equal(e[2].tag[e[2].n_values - 1], "train/accuracy");
    assert_int_equal(e[3].n_values, 3);
    assert_string_equal(e[3].tag[0], "Loss/validation");
    assert_string_equal(e[3].tag[1], "validation/accuracy");
    assert_string_equal(e[3].tag[2], "validation/accuracy");
    assert_true(e[3].value[0] == 1.5f && e[3].value[1] == 0.5f && e[3].value[2] == 0.25f);
}

TEST_WITH(the_configuration_is_stored_as_text, setup, teardown)
{
    struct fixture *f = *state;
    dt_report *r = NULL;
    char paths[2][400];
    struct event e[8];
    const dt_config cfg = {.run_output_dir = f->dir, .log_report_to = "tensorboard"};
    const dt_report_options opt = {.cfg = &cfg,
                                   .config = "[run]\ntask = sft\nseed = 7\nreproducible = false\ntime_limit "
                                             "=\n\n[optimizer]\nlr = 3e-4\nbetas = 0.9, 0.95\n"};
    assert_int_equal(dt_report_open(&r, &opt), DT_OK);
    dt_report_close(r);
    assert_int_equal(event_files(f, paths, 2), 1);
    assert_int_equal(read_events(paths[0], e, 8), 3);
    assert_int_equal(e[2].n_values, 1);
    assert_string_equal(e[2].tag[0], "config");
    assert_string_equal(e[2].plugin[0], "text");
    assert_string_equal(e[2].text[0], "    [run]\n    task = sft\n    seed = 7\n    reproducible = false\n    "
                                      "time_limit =\n    \n    [optimizer]\n    lr = 3e-4\n"
                                      "    betas = 0.9, 0.95\n");
}

TEST_WITH(a_resumed_run_says_which_steps_it_repeats_in_a_later_file, setup, teardown)
{
    struct fixture *f = *state;
    char paths[4][400], ahead[160];
    struct event e[8];
    dt_report_close(open_report(f, "tensorboard", 0));
    /* written by a host whose clock is a day ahead */
    snprintf(ahead, sizeof ahead, "%s/events.out.tfevents.%010lld.zz.1", f->dir, (long long)time(NULL) + 86400);
    spill(ahead, "");
    dt_report_close(open_report(f, "tensorboard", 41));
    assert_int_equal(event_files(f, paths, 4), 3);
    assert_int_equal(read_events(paths[2], e, 8), 2);
    assert_int_equal(e[1].session_status, 1);
    assert_int_equal(e[1].step, 42);
}

TEST_WITH(an_evaluation_adds_to_what_is_there_and_restarts_no_step, setup, teardown)
{
    struct fixture *f = *state;
    char paths[4][400];
    struct event e[8];
    dt_report *r = open_report(f, "jsonl, tensorboard", 0);
    const dt_train_record rec = record_of(7);
    assert_int_equal(dt_report_train(r, &rec), DT_OK);
    dt_report_close(r);
    const dt_config cfg = {.run_output_dir = f->dir, .log_report_to = "jsonl, csv, tensorboard"};
    const dt_report_options opt = {.cfg = &cfg, .append = true};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(dt_report_open(&r, &opt), DT_OK);
        assert_int_equal(dt_report_validation(r, 0, 1.5, NULL, 0), DT_OK);
        dt_report_close(r);
    }
    assert_int_equal(event_files(f, paths, 4), 3);
    assert_int_equal(read_events(paths[2], e, 8), 2); /* the version and the validation: no start of a session */
    assert_int_equal(e[1].session_status, 0);
    assert_string_equal(e[1].tag[0], "Loss/validation");
    dt_metrics m;
    assert_int_equal(dt_metrics_read(&m, f->jsonl), DT_OK);
    assert_int_equal(m.n_rows, 3);
    dt_metrics_free(&m);
}

int main(void) { return run_listed("event files", NULL, NULL); }

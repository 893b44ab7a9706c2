/* events.c - the sink "tensorboard": event files, which are framed protocol buffers. The few messages of TensorBoard
 * that are written here are encoded by hand; a protobuf library would be the larger part of the program.
 *
 * Frame (TFRecord), little-endian:  uint64 length | uint32 masked CRC of the length | data | uint32 masked CRC of the
 * data. Data, with field numbers (tensorflow/core/util/event.proto, framework/summary.proto):
 *     Event       1 double wall_time   2 int64 step   3 string file_version   5 Summary summary   7 SessionLog
 *                 session_log
 *     Summary     1 repeated Value value
 *     Value       1 string tag   2 float simple_value   8 TensorProto tensor   9 SummaryMetadata metadata
 *     SessionLog  1 enum status (1: START)
 * The configuration is a tensor of one string for the plugin "text".
 *     SummaryMetadata  1 PluginData {1 string plugin_name}   4 enum data_class (2: TENSOR)
 *     TensorProto      1 enum dtype (7: string)   2 shape {2 repeated dim {1 int64 size}}
 *                      8 repeated bytes string_val */
#include "fields.h"
#include "protobuf.h"
#include "sink.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILE_PREFIX "events.out.tfevents."

enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_TENSOR = 8, VALUE_METADATA = 9, TENSOR_STRING = 8 };

typedef struct events {
    dt_record_file file;                  /* first: dt_sink_sync_file */
    dt_text value, summary, event, frame; /* each contains the previous one */
    int64_t step;
} events;

static void begin_event(events *e, int64_t step)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    e->event.n = 0;
    dt_pb_double(&e->event, EVENT_WALL_TIME, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    dt_pb_varint(&e->event, EVENT_STEP, (uint64_t)step);
}

static uint32_t masked_crc(const void *data, size_t nbytes)
{
    const uint32_t crc = dt_crc32c(data, nbytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static dt_err write_event(events *e)
{
    dt_text *f = &e->frame;
    f->n = 0;
    dt_pb_fixed(f, e->event.n, 8);
    dt_pb_fixed(f, masked_crc(f->bytes, f->n), 4);
    dt_text_append(f, e->event.bytes, e->event.n);
    dt_pb_fixed(f, masked_crc(e->event.bytes, e->event.n), 4);
    f->failed |= e->event.failed;
    return dt_record_file_write(&e->file, f);
}

/* TensorBoard reads the files of a directory in the order of their names, which begin with the time in seconds. Return
 * a time after that of all existing files. The current time may be too early: the clock of another host was ahead, or
 * the last start was in the same second. */
static long long file_time(const char *dir)
{
    long long t = (long long)time(NULL);
    DIR *d = opendir(dir);
    if (!d) return t;
    for (struct dirent *ent; (ent = readdir(d));) {
        if (strncmp(ent->d_name, FILE_PREFIX, strlen(FILE_PREFIX)) != 0) continue;
        const long long other = strtoll(ent->d_name + strlen(FILE_PREFIX), NULL, 10);
        if (other >= t && other < 9999999999LL) t = other + 1;
    }
    closedir(d);
    return t;
}

/* Create a file DIR/events.out.tfevents.TIME.HOST.PID that sorts after the existing ones. Its first record states that
 * the run (re)starts at first_step. TensorBoard then drops earlier records of the steps that follow. first_step < 0: no
 * step is repeated, and there is no such record. */
static dt_err open_file(events *e, const char *dir, int64_t first_step)
{
    char host[256] = "", path[PATH_MAX];
    if (gethostname(host, sizeof host - 1) != 0 || !host[0]) snprintf(host, sizeof host, "localhost");
    const int n =
        snprintf(path, sizeof path, "%s/" FILE_PREFIX "%010lld.%s.%ld", dir, file_time(dir), host, (long)getpid());
    DT_CHECK(n < (int)sizeof path, DT_ERR_WRITE, "%s: the name of the event file is too long", dir);
    DT_TRY(dt_record_file_open(&e->file, path, false));

    begin_event(e, 0);
    dt_pb_text(&e->event, EVENT_FILE_VERSION, "brain.Event:2");
    DT_TRY(write_event(e));

    if (first_step < 0) return DT_OK;
    begin_event(e, first_step);
    dt_pb_varint(&e->summary, 1, 1); /* status: START */
    dt_pb_message(&e->event, EVENT_SESSION_LOG, &e->summary);
    return write_event(e);
}

static void begin_summary(events *e, int64_t step)
{
    e->summary.n = 0;
    e->step = step;
}

static void add_value(events *e, const char *tag, double value)
{
    dt_pb_text(&e->value, VALUE_TAG, tag);
    dt_pb_float(&e->value, VALUE_SIMPLE, (float)value);
    dt_pb_message(&e->summary, SUMMARY_VALUE, &e->value);
}

static dt_err end_summary(events *e)
{
    begin_event(e, e->step);
    dt_pb_message(&e->event, EVENT_SUMMARY, &e->summary);
    return write_event(e);
}

/* ---- the configuration ------------------------------------------------------------------------------------------- */

/* SummaryMetadata: plugin "text", data_class TENSOR. TensorProto before string_val: dtype string, shape [1]. */
static const char METADATA[] = "\x0a\x06\x0a\x04text\x20\x02", TENSOR[] = "\x08\x07\x12\x04\x12\x02\x08\x01";

/* TensorBoard shows Markdown, in which lines that begin with four blanks are code. */
static dt_err write_config(events *e, int64_t step, const char *ini)
{
    dt_text text = {0}, tensor = {0};
    while (*ini) {
        const int len = (int)strcspn(ini, "\n");
        dt_text_printf(&text, "    %.*s\n", len, ini);
        ini += len + (ini[len] == '\n');
    }
    begin_summary(e, step);
    dt_pb_text(&e->value, VALUE_TAG, "config");
    dt_text_append(&tensor, TENSOR, sizeof TENSOR - 1);
    dt_pb_message(&tensor, TENSOR_STRING, &text);
    dt_pb_message(&e->value, VALUE_TENSOR, &tensor);
    dt_pb_bytes(&e->value, VALUE_METADATA, METADATA, sizeof METADATA - 1);
    dt_pb_message(&e->summary, SUMMARY_VALUE, &e->value);
    dt_text_free(&text);
    dt_text_free(&tensor);
    return end_summary(e);
}

/* ---- the sink ---------------------------------------------------------------------------------------------------- */

static dt_err events_open(void *self, const dt_report_options *opt)
{
    events *e = self;
    dt_text *const texts[] = {&e->value, &e->summary, &e->event, &e->frame};
    const int64_t first = opt->append ? -1 : opt->resume_step > 0 ? opt->resume_step + 1 : 0;
    e->file.fd = -1;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) dt_text_reserve(texts[i], DT_RECORD_NBYTES);
    DT_TRY(open_file(e, opt->cfg->run_output_dir, first));
    return opt->config ? write_config(e, opt->resume_step, opt->config) : DT_OK;
}

/* Tag "train/NAME", unless the task's name has a prefix ("dpo/accuracy"). "validation_accuracy" becomes
 * "validation/accuracy". */
static void add_metric(events *e, const char *group, const dt_metric *m)
{
    char tag[256];
    const size_t len = strlen(group);
    if (strchr(m->name, '/'))
        snprintf(tag, sizeof tag, "%s", m->name);
    else
        snprintf(tag, sizeof tag, "%s/%s", group,
                 strncmp(m->name, group, len) == 0 && m->name[len] == '_' ? m->name + len + 1 : m->name);
    add_value(e, tag, m->value);
}

static dt_err events_train(void *self, const dt_train_record *rec)
{
    events *e = self;
    dt_field fields[DT_N_FIELDS];
    dt_fields_of(rec, fields);
    begin_summary(e, rec->step);
    for (int i = 0; i < DT_N_FIELDS; i++)
        if (fields[i].tag && fields[i].known) add_value(e, fields[i].tag, fields[i].value);
    for (int i = 0; i < rec->n_more; i++) add_metric(e, "train", &rec->more[i]);
    return end_summary(e);
}

static dt_err events_validation(void *self, const dt_validation *v)
{
    events *e = self;
    begin_summary(e, v->step);
    add_value(e, "Loss/validation", v->loss);
    for (int i = 0; i < v->n_more; i++) add_metric(e, "validation", &v->more[i]);
    return end_summary(e);
}

static void events_close(void *self)
{
    events *e = self;
    dt_record_file_close(&e->file);
    dt_text_free(&e->value);
    dt_text_free(&e->summary);
    dt_text_free(&e->event);
    dt_text_free(&e->frame);
}

const dt_sink dt_sink_tensorboard = {.needs_dir = true,
                                     .nbytes = sizeof(events),
                                     .open = events_open,
                                     .train = events_train,
                                     .validation = events_validation,
                                     .sync = dt_sink_sync_file,
                                     .close = events_close};

/* model_fixture.h - a model on plain buffers and a batch for it, for tests of one process. */
#ifndef TESTS_MODEL_FIXTURE_H
#define TESTS_MODEL_FIXTURE_H

#include "cases.h"
#include "ref_model.h"

static inline void open_plain_model(ref_model *r, dt_batch *b, const char *config, const dt_model_options *opt)
{
    dt_error_clear();
    if (ref_model_open(r, "test", config, opt) != DT_OK) fail_msg("%s", dt_error_message());
    *b = (dt_batch){0};
    assert_int_equal(dt_batch_alloc(b, opt->max_tok, opt->max_seq, &r->ledger), DT_OK);
}

/* Nothing was used wrongly, nothing is left. */
static inline void close_model(ref_model *r, dt_batch *b)
{
    dt_batch_free(b, &r->ledger);
    ref_model_close(r);
    assert_false(r->misused);
    assert_int_equal(ref_model_left(r), 0);
}

#endif

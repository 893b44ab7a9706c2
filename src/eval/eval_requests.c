/* eval_requests.c - encodes texts as lm-evaluation-harness does (api/model.py, models/huggingface.py), and divides them
 * into micro-batches. */
#include "dtrain/text/space.h"
#include "eval_private.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

/* Append the ids of one text followed by another. A text that begins with the prefix token is not wrapped. */
static dt_err encode(dt_evals *e, const char *one, size_t n_one, const char *two, bool wraps, dt_ids *ids)
{
    const dt_span spans[] = {{.text = one, .nbytes = n_one}, {.text = two, .nbytes = strlen(two)}};
    const char *prefix = e->prefix >= 0 ? dt_tokenizer_token(e->tokenizer, e->prefix) : NULL;
    const size_t n_prefix = prefix ? strlen(prefix) : 0;
    if (n_prefix > 0 && n_one >= n_prefix && memcmp(one, prefix, n_prefix) == 0) wraps = false;
    return dt_encode(e->encoder, spans, 2, wraps ? DT_ENCODE_WRAP : 0, ids, NULL);
}

static dt_err add_request(eval_bench *b, int64_t at, int64_t n_context, int64_t n_continuation)
{
    DT_GROW(b->request, b->n_requests, "out of memory for the texts of %s", b->name);
    b->request[b->n_requests++] =
        (eval_request){.at = at, .n_context = (int32_t)n_context, .n_continuation = (int32_t)n_continuation};
    return DT_OK;
}

static dt_err need_prefix(const dt_evals *e, const eval_bench *b, const eval_doc *doc)
{
    if (e->prefix >= 0) return DT_OK;
    return eval_doc_fail(b, EVAL_doc_to_text, doc,
                         "a text without context needs a token that begins or ends texts, and "
                         "the tokenizer has none");
}

/* Without a context the prefix token is the context, unless the continuation begins with it. */
static dt_err encode_alone(dt_evals *e, const char *continuation, int64_t *n_context)
{
    const size_t at = e->ids.n;
    DT_TRY(dt_ids_reserve(&e->ids, 1));
    e->ids.id[e->ids.n++] = e->prefix;
    DT_TRY(encode(e, continuation, strlen(continuation), "", false, &e->ids));
    if (e->ids.n > at + 1 && e->ids.id[at + 1] == e->prefix) {
        e->ids.n--;
        memmove(e->ids.id + at, e->ids.id + at + 1, (e->ids.n - at) * sizeof *e->ids.id);
    }
    *n_context = 1;
    return DT_OK;
}

/* Number of tokens of a context alone, without white space at its end. */
static dt_err count_alone(dt_evals *e, const char *context, int64_t *n_context)
{
    dt_ids alone = {0};
    const dt_err err = encode(e, context, dt_space_trimmed(context, strlen(context)), "", true, &alone);
    *n_context = (int64_t)alone.n;
    free(alone.id);
    return err;
}

/* Context and continuation are encoded together, and the context has as many tokens as alone. White space at its end
 * belongs to the continuation. n_context: -1 if the context is new; inout. */
static dt_err add_pair(dt_evals *e, eval_bench *b, const eval_doc *doc, const char *context, const char *continuation,
                       int64_t *n_context)
{
    const int64_t at = (int64_t)e->ids.n;
    if (!*context) {
        DT_TRY(need_prefix(e, b, doc));
        DT_TRY(encode_alone(e, continuation, n_context));
    } else {
        if (*n_context < 0) DT_TRY(count_alone(e, context, n_context));
        DT_TRY(encode(e, context, strlen(context), continuation, true, &e->ids));
    }
    const int64_t n = (int64_t)e->ids.n - at - *n_context, too_many = *n_context + n - e->max_length - 1;
    if (n <= 0 || *n_context <= 0)
        return eval_doc_fail(b, EVAL_doc_to_text, doc, "the %s '%.80s' has no tokens of its own",
                             n <= 0 ? "continuation" : "context", n <= 0 ? continuation : context);
    if (n > e->max_length)
        return eval_doc_fail(b, EVAL_doc_to_target, doc,
                             "expected continuations of at most eval.max_length = %d tokens, found %" PRId64,
                             e->max_length, n);
    if (too_many <= 0) return add_request(b, at, *n_context, n);
    return add_request(b, at + too_many, *n_context - too_many, n);
}

/* A text in windows of at most max_length predicted tokens, each after at least one token. */
static dt_err add_windows(dt_evals *e, eval_bench *b, const eval_doc *doc, const char *text)
{
    const int64_t at = (int64_t)e->ids.n, L = e->max_length;
    DT_TRY(need_prefix(e, b, doc));
    DT_TRY(dt_ids_reserve(&e->ids, 1));
    e->ids.id[e->ids.n++] = e->prefix;
    DT_TRY(encode(e, text, strlen(text), "", true, &e->ids));
    const int64_t n = (int64_t)e->ids.n - at - 1;
    if (n == 0) return eval_doc_fail(b, EVAL_doc_to_target, doc, "expected a text, found one without tokens");
    for (int64_t done = 0; done < n;) {
        const int64_t part = dt_min_i64(n - done, L), end = done + part, first = dt_max_i64(end - L, 0);
        /* all but the first window are filled up with preceding tokens, of which the last `done` were predicted */
        DT_TRY(add_request(b, at + first, done == 0 ? 1 : done + 1 - first, part));
        done = end;
    }
    return DT_OK;
}

/* A prompt, whose first tokens are dropped if no space is left for the text; each of the texts has a request. */
static dt_err add_prompt(dt_evals *e, eval_bench *b, const eval_doc *doc, const char *prompt)
{
    const int64_t at = (int64_t)e->ids.n, most = (int64_t)e->max_length - b->max_new;
    DT_TRY(encode(e, prompt, strlen(prompt), "", true, &e->ids));
    const int64_t n = (int64_t)e->ids.n - at, kept = dt_min_i64(n, most);
    if (most <= 0)
        return eval_fail(b, EVAL_max_gen_toks,
                         "expected less than eval.max_length = %d, found %d; lower eval.max_gen_toks", e->max_length,
                         b->max_new);
    if (n == 0) return eval_doc_fail(b, EVAL_doc_to_text, doc, "expected a text, found one without tokens");
    for (int i = 0; i < b->n_repeats; i++) DT_TRY(add_request(b, at + n - kept, kept, 0));
    return DT_OK;
}

static dt_err add_document(dt_evals *e, eval_bench *b, int64_t i, python_random *random)
{
    eval_question q = {0};
    eval_item *item = &b->item[i];
    item->first = b->n_requests;
    dt_err err = eval_ask(b, i, random, &q);
    if (err == DT_OK && b->form == EVAL_ROLLING) err = add_windows(e, b, &b->docs.doc[i], q.continuation[0]);
    if (err == DT_OK && b->form == EVAL_GENERATE) err = add_prompt(e, b, &b->docs.doc[i], q.context[0]);
    if (err == DT_OK && b->is_judged) b->prompt[i] = q.context[0], q.context[0] = NULL;
    int64_t n_context = -1;
    for (int k = 0; err == DT_OK && b->form < EVAL_ROLLING && k < q.n; k++) {
        if (q.n_contexts > 1) n_context = -1;
        err = add_pair(e, b, &b->docs.doc[i], q.context[q.n_contexts > 1 ? k : 0], q.continuation[k], &n_context);
    }
    item->n = (int)(b->n_requests - item->first);
    eval_free_question(&q);
    return err;
}

dt_err eval_make_requests(dt_evals *e, eval_bench *b, const dt_config *cfg)
{
    python_random random;
    python_random_seed(&random, (uint32_t)cfg->eval_fewshot_seed);
    DT_ALLOC(b->item, b->docs.n, "out of memory for the documents of %s", b->name);
    if (b->is_judged) DT_ALLOC(b->prompt, b->docs.n, "out of memory for the prompts of %s", b->name);
    for (int64_t i = 0; i < b->docs.n; i++) DT_TRY(add_document(e, b, i, &random));
    if (b->is_judged) DT_ALLOC(b->judged, 2 * b->n_requests, "out of memory for results of %s", b->name);
    DT_ALLOC(b->logp, b->n_requests, "out of memory for results of %s", b->name);
    DT_ALLOC(b->greedy, b->n_requests, "out of memory for results of %s", b->name);
    DT_ALLOC(b->score, b->docs.n, "out of memory for results of %s", b->name);
    return DT_OK;
}

/* ---- micro-batches ----------------------------------------------------------------------------------------------- */

/* Tokens of a request that are read: the last one is only predicted. */
static int32_t n_read(const eval_request *r) { return r->n_context + r->n_continuation - 1; }

dt_err eval_make_batches(dt_evals *e)
{
    for (int k = 0; k < e->n_benches; k++)
        for (int64_t i = 0; i < e->bench[k].n_requests; i++)
            e->max_tok = (int32_t)dt_max_i64(e->max_tok, n_read(&e->bench[k].request[i]));
    for (int k = 0; k < e->n_benches; k++) {
        const eval_bench *b = &e->bench[k];
        for (int64_t i = 0, n; i < b->n_requests && b->form != EVAL_GENERATE; i += n) {
            int64_t n_tok = n_read(&b->request[i]);
            for (n = 1; i + n < b->n_requests && n < e->max_seq; n++) {
                n_tok += n_read(&b->request[i + n]);
                if (n_tok > e->max_tok) break;
            }
            DT_GROW(e->batch, e->n_batches, "out of memory for micro-batches");
            e->batch[e->n_batches++] = (struct eval_batch){.bench = k, .first = i, .n = (int)n};
        }
    }
    return DT_OK;
}

void eval_fill_batch(dt_evals *e, int64_t batch)
{
    dt_batch *m = &e->micro;
    dt_batch_clear(m);
    if (batch >= 0 && batch < e->n_batches) {
        const struct eval_batch *x = &e->batch[batch];
        const eval_request *r = e->bench[x->bench].request + x->first;
        for (int i = 0; i < x->n; i++) dt_batch_append(m, e->ids.id + r[i].at, n_read(&r[i]), r[i].n_context);
    }
    dt_batch_finish(m);
}

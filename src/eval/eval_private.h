/* eval_private.h - a benchmark: its description, its documents, and the texts that the model scores. */
#ifndef DTRAIN_EVAL_PRIVATE_H
#define DTRAIN_EVAL_PRIVATE_H

#include "dtrain/eval/eval.h"
#include "dtrain/step/judge.h"
#include "dtrain/generate/generate.h"
#include "dtrain/jinja/jinja.h"
#include "dtrain/pretrained/pretrained.h"
#include "dtrain/text/pattern.h"
#include "dtrain/tokenizer/tokenizer.h"

/* A growing text as a string, borrowed; "" after a failure. */
static inline const char *eval_string(dt_text *t)
{
    dt_text_append(t, "", 0);
    return t->failed ? "" : t->bytes;
}

/* ---- description (eval_file.c) ----------------------------------------------------------------------------------- */

/* The keys of a description, with those names and meanings of lm-evaluation-harness that it has: name, default. */
#define EVAL_KEYS(KEY)                                                                                                 \
    KEY(output_type, "")                                                                                               \
    KEY(files, "")                                                                                                     \
    KEY(doc_to_text, "")                                                                                               \
    KEY(doc_to_target, "")                                                                                             \
    KEY(doc_to_choice, "")                                                                                             \
    KEY(doc_to_counted, "")                                                                                            \
    KEY(n_choices, "0")                                                                                                \
    KEY(description, "")                                                                                               \
    KEY(gen_prefix, "")                                                                                                \
    KEY(target_delimiter, " ")                                                                                         \
    KEY(num_fewshot, "")                                                                                               \
    KEY(fewshot_files, "")                                                                                             \
    KEY(fewshot_sampler, "default")                                                                                    \
    KEY(fewshot_without_doc, "false")                                                                                  \
    KEY(fewshot_delimiter, "\n\n")                                                                                     \
    KEY(metrics, "")                                                                                                   \
    KEY(process_docs, "")                                                                                              \
    KEY(until, "")                                                                                                     \
    KEY(max_gen_toks, "256")                                                                                           \
    KEY(temperature, "0")                                                                                              \
    KEY(top_p, "1")                                                                                                    \
    KEY(top_k, "0")                                                                                                    \
    KEY(repeats, "1")                                                                                                  \
    KEY(filter, "")                                                                                                    \
    KEY(compare, "text")                                                                                               \
    KEY(regexes_to_ignore, "")                                                                                         \
    KEY(ignore_case, "false")                                                                                          \
    KEY(ignore_punctuation, "false")                                                                                   \
    KEY(ignore_numbers, "false")                                                                                       \
    KEY(judge_text, "{{prompt}}{{answer}}")
#define EVAL_KEY_ENUMERATOR(name, otherwise) EVAL_##name,
typedef enum eval_key { EVAL_KEYS(EVAL_KEY_ENUMERATOR) EVAL_N_KEYS } eval_key;

typedef enum eval_form { EVAL_CHOICES, EVAL_LIKELIHOOD, EVAL_ROLLING, EVAL_GENERATE, EVAL_N_FORMS } eval_form;

/* A value: a template, a list, or the name of a field of documents. */
typedef struct eval_value {
    char *text; /* malloc'ed */
    int line;   /* in the description; 0: the default */
    json_t *list;
    dt_jinja *template;
} eval_value;

typedef struct eval_doc {
    json_t *record;
    const char *path; /* of its file, in eval_bench.path */
    int64_t line;
} eval_doc;
typedef struct eval_docs {
    eval_doc *doc;
    int64_t n;
} eval_docs;

/* A context and the continuation that is scored. */
typedef struct eval_request {
    int64_t at; /* of its tokens in dt_evals.ids */
    int32_t n_context, n_continuation;
} eval_request;

/* A document's requests and answer. */
typedef struct eval_item {
    int64_t first; /* in eval_bench.request */
    int n;
    int64_t n_words, n_bytes; /* of a text whose perplexity is measured */
    uint64_t gold;            /* bit k: choice k is right; of more than 64 choices, only one is */
    int answer;               /* the first right choice */
    int32_t *length;          /* [n] of each choice: characters, then [n] bytes */
} eval_item;

/* Finds the answer in a generated text. */
typedef struct eval_filter {
    char *name;          /* NULL: the answer is the whole text */
    dt_pattern *pattern; /* NULL likewise */
    int group;           /* number of the match; negative: from the end */
} eval_filter;

typedef struct eval_metric eval_metric;
typedef struct eval_result {
    const eval_metric *metric;
    char name[DT_SUM_NAME]; /* with its number and filter: "hits@3" */
    int k, filter;          /* k: that number; filter: of generated texts */
    int sum, sum_of_error;  /* in dt_sums; sum_of_error 0: none */
    double value, error;
} eval_result;

typedef struct eval_bench {
    char *name, *file; /* file: of the description */
    int line;          /* of its section */
    eval_value value[EVAL_N_KEYS];
    eval_form form;
    int n_fewshot, n_choices;
    char **path; /* [n_paths] data files */
    int n_paths;
    eval_docs docs, examples;
    eval_item *item; /* [docs.n] */
    eval_request *request;
    int64_t n_requests;
    eval_filter *filter; /* [n_filters] of generated texts */
    int n_filters;
    dt_pattern **ignored; /* [n_ignored] matches that a comparison ignores */
    int n_ignored;
    json_t *until; /* texts that end a generated text */
    int n_repeats, max_new;
    dt_sampling sampling;
    dt_generator *generator;
    const dt_evals *evals; /* for the callbacks of the generator, like task */
    const dt_task *task;
    int32_t *generated; /* [n_requests, 1 + max_new] number of new tokens, and the tokens */
    int64_t max_context;
    bool is_judged;  /* a metric needs the judge */
    char **prompt;   /* [docs.n] if it is */
    double *judged;  /* [2, n_requests] scores of generated answers, then of the targets */
    double *correct; /* [n_filters, n_requests] */
    double *logp;    /* [n_requests] after an evaluation */
    double *greedy;  /* [n_requests] 1: each token of the continuation was the most probable */
    double *score;   /* [docs.n] of a metric */
    eval_result *result;
    int n_results;
} eval_bench;

/** Read the descriptions of eval.tasks. DT_ERR_USAGE naming file, line and key. */
dt_err eval_read_files(dt_evals *e, const dt_config *cfg);
/** The location of a key for messages: "FILE:LINE: [BENCHMARK] key"; returns out. */
enum { EVAL_WHERE = 400 };
const char *eval_where(const eval_bench *b, eval_key key, char out[EVAL_WHERE]);
/** DT_ERR_USAGE at a key. */
dt_err eval_fail(const eval_bench *b, eval_key key, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
const char *eval_text(const eval_bench *b, eval_key key);
/** Parse a value: a whole number, or one of two words. */
dt_err eval_take_number(const eval_bench *b, eval_key key, int *n);
dt_err eval_check_word(const eval_bench *b, eval_key key, const char *one, const char *two);
void eval_free_bench(eval_bench *b);

/* ---- documents (eval_documents.c) -------------------------------------------------------------------------------- */

/** Read the documents and examples of a benchmark, at most limit documents; 0: all. */
dt_err eval_read_documents(eval_bench *b, const dt_config *cfg);
/** The value of a key for a document: a text, an integer, or a list of texts; malloc'ed. *value NULL: the key is empty.
 *  Errors name description, key and document. */
dt_err eval_value_of(const eval_bench *b, eval_key key, const eval_doc *doc, json_t **value);
/** DT_ERR_DATA at a key and a document. */
dt_err eval_doc_fail(const eval_bench *b, eval_key key, const eval_doc *doc, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- prompts (eval_prompts.c) ------------------------------------------------------------------------------------ */

/** What a document asks. {0} to begin. */
typedef struct eval_question {
    char **context; /* [n_contexts] 1, or one per choice */
    int n_contexts;
    char **continuation; /* [n] */
    int n;
    json_t *choices; /* NULL: none */
    json_t *target;
    int at_text; /* the choice that doc_to_text names; -1: it is a text */
} eval_question;
/** The stream of Python's random.Random. */
typedef struct python_random {
    uint32_t state[624];
    int next;
} python_random;
void python_random_seed(python_random *r, uint32_t seed);
/** random.sample(range(n), k). out: out [k]. DT_ERR_MEMORY. */
dt_err python_random_sample(python_random *r, int64_t n, int k, int64_t *out);
/** random.random(). */
double python_random_real(python_random *r);

/** The question of document i. random: chooses examples, in the order of documents. */
dt_err eval_ask(eval_bench *b, int64_t i, python_random *random, eval_question *q);
void eval_free_question(eval_question *q);

/* ---- requests (eval_requests.c) ---------------------------------------------------------------------------------- */

/* The model of eval.judge_path. */
typedef struct eval_judge {
    dt_judge judge;
    dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    dt_batch batch;
    dt_ids ids;
} eval_judge;

struct dt_evals {
    eval_judge *judge; /* NULL: none */
    eval_bench *bench;
    int n_benches;
    dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    int32_t prefix; /* token before a text without context */
    int32_t max_length, max_tok, max_seq;
    dt_ids ids;
    struct eval_batch {
        int bench;
        int64_t first; /* request */
        int n;
    } * batch;                  /* [n_batches] */
    int64_t n_batches, n_micro; /* n_micro: of this rank */
    dt_batch micro;
    int32_t ends[DT_MAX_ENDS]; /* tokens that end a generated text */
    int n_ends, n_generating;  /* n_generating: benchmarks with generated texts */
    void *growing;             /* sequences of a rank */
    size_t n_growing;
    int first_shown;
    bool evaluated; /* results are of an evaluation */
    size_t nbytes;
};

/** Encode all texts of a benchmark. */
dt_err eval_make_requests(dt_evals *e, eval_bench *b, const dt_config *cfg);
/** Divide all requests into micro-batches. */
dt_err eval_make_batches(dt_evals *e);
/** Fill e->micro with a micro-batch; -1: an empty one. */
void eval_fill_batch(dt_evals *e, int64_t batch);

/* ---- generated texts (eval_generate.c, eval_answers.c, math_answer.c) ------------------------------------------- */

/** Read the keys of generated texts. */
dt_err eval_read_generation(eval_bench *b, const dt_config *cfg);
/** Increase limits for the generation of all benchmarks. */
void eval_widen_generation(dt_evals *e, dt_task *t);
/** Host memory of generation, and that of its generators, which they count. */
size_t eval_generation_nbytes(const dt_evals *e, const dt_task *t);
size_t eval_generators_nbytes(const dt_evals *e, const dt_task *t);
/** Open the generators. */
dt_err eval_begin_generation(dt_evals *e, dt_task *t);
void eval_close_generation(dt_evals *e);
/** Generate all texts of a benchmark, on all ranks, and compare them. Collective, agreed. */
dt_err eval_generate(dt_evals *e, eval_bench *b, dt_task *t);
/** A generated text up to the first text of `until`; malloc'ed. NULL: no memory. */
char *eval_generated_text(const dt_evals *e, const eval_bench *b, int64_t request);

/** Open eval.judge_path, if a metric needs it; score all answers of a benchmark and their targets. Collective. */
dt_err eval_open_judge(dt_evals *e, dt_task *t);
dt_err eval_judge_texts(dt_evals *e, eval_bench *b, dt_task *t);
/** Sum values over the ranks of an axis. Collective. */
dt_err eval_share(const dt_axis *data, double *x, int64_t n);

dt_err eval_read_answers(eval_bench *b);
void eval_free_answers(eval_bench *b);
/** Is the answer that a filter finds in a text equal to the target, or to one of them? */
dt_err eval_is_correct(const eval_bench *b, int filter, const char *text, const json_t *target, bool *correct);
dt_err eval_math_equal(const char *one, const char *two, bool *equal);
/** Contents of the last \\boxed{...} of a solution; NULL: none. */
const char *eval_math_boxed(const char *solution, size_t *n);

/* ---- metrics (eval_metrics.c) ------------------------------------------------------------------------------------ */

/** Parse the key metrics of a benchmark, and declare its results. */
dt_err eval_declare(eval_bench *b, dt_sums *s);
/** Compute the results of a benchmark from log-probabilities. */
dt_err eval_compute(eval_bench *b, const dt_config *cfg);

/** Write OUTPUT_DIR/eval/BENCHMARK.jsonl. */
dt_err eval_write_samples(const dt_evals *e, const eval_bench *b, const dt_config *cfg);

#endif

/* request.h - requests of OpenAI's API for completions and conversations, from JSON. Every function is Local.
 *
 * The reference is OpenAI's published API. top_k, min_p and repetition_penalty are those of vLLM. A field
 * that would change the answer and is not supported is an error; a field with its neutral value is accepted. */
#ifndef DTRAIN_REQUEST_H
#define DTRAIN_REQUEST_H

#include "dtrain/generate/sampler.h"
#include "dtrain/io/json.h"

enum { DT_MAX_REQUEST_STOPS = 16, DT_MAX_LOGPROBS = 20, DT_MAX_CHOICES = 128 };

/** A request for completions, or for answers of a conversation. Texts are borrowed from root. */
typedef struct dt_api_request {
    json_t *root;
    bool chat;
    json_t *prompts;               /* completions: a list of texts and of lists of ids; owned */
    json_t *messages, *tools;      /* chat: borrowed; tools NULL: none, or they are not to be called */
    const char *model;             /* NULL: not given */
    int64_t n;                     /* answers for each prompt */
    int64_t max_tokens;            /* -1: not given */
    int64_t logprobs;              /* number of alternatives; -1: no log-probabilities */
    bool echo, stream, with_usage; /* with_usage: a stream ends with the numbers of tokens */
    dt_sampling sampling;
    bool has_seed;
    const char *stop[DT_MAX_REQUEST_STOPS];
    int n_stop;
} dt_api_request;

/** Parse the body of a request.
 *
 *  r      out  freed with dt_request_free, also after an error
 *  chat   /v1/chat/completions, else /v1/completions
 *  usual  settings that the request does not give
 *  param  out  the field that an error is about; NULL: none
 *
 *  DT_ERR_USAGE, DT_ERR_DATA: not JSON, an unknown or unsupported field, a value of another type or out of range.
 *  DT_ERR_MEMORY. */
dt_err dt_request_parse(dt_api_request *r, bool chat, const char *body, size_t nbytes, const dt_sampling *usual,
                        const char **param);
/** Free the request. Safe on {0}; leaves {0}. */
void dt_request_free(dt_api_request *r);

#endif

/* dtrain-generate.c - samples from a trained model, on one rank or many. The model is the trainer's own, frozen under
 * ZeRO. At stage 0, each rank holds the whole model and processes its share of the prompts independently. At stage 3,
 * for models larger than a rank's memory, all ranks run the same forward passes. */
#include "generate/generate_app.h"
#include "tool/tool.h"
#include "dtrain/process/process.h"
#include "dtrain/serve/request.h"
#include "dtrain/text/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PREFILL_TOK = 1024, CHAT_LEN = 4096 };

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* Open the tokenizer: from the command line, else the model's. A checkpoint without one uses bytes if its
 * vocabulary is large enough. */
static dt_err open_tokenizer(app *a)
{
    const char *known = a->opt.tokenizer ? a->opt.tokenizer : a->frozen.from.tokenizer, *name = known ? known : "bytes";
    if (strcmp(name, "ids") == 0) return DT_OK;
    DT_TRY(dt_tokenizer_open(&a->tok, name));
    const dt_tokenizer_info *info = dt_tokenizer_get_info(a->tok);
    if (a->frozen.mc.vocab_size < info->vocab_size && !a->opt.tokenizer && strcmp(name, "bytes") == 0) {
        if (a->comm.rank == 0)
            DT_WARN("the model's vocabulary of %" PRId64
                    " tokens is smaller than the tokenizer's (%s), so prompts and output are token ids",
                    a->frozen.mc.vocab_size, name);
        dt_tokenizer_close(a->tok);
        a->tok = NULL;
        DT_CHECK(a->opt.n_stop == 0 && !a->opt.chat && !a->opt.serve, DT_ERR_USAGE,
                 "--stop, --chat and --serve need a tokenizer; see --tokenizer");
        return DT_OK;
    }
    return dt_encoder_open(&a->encoder, a->tok);
}

/* The training's chat template, as dt_chat_spec, from the checkpoint or its directory. NULL: unknown. */
static char *trained_template(const app *a)
{
    dt_chat *c = NULL;
    char *spec = NULL;
    const char *name = a->frozen.from.chat_template;
    if (!name) return dt_chat_written(a->tok);
    if (dt_chat_open(&c, name, a->tok) != DT_OK || dt_chat_spec(c, &spec) != DT_OK) dt_error_clear();
    dt_chat_close(c);
    return spec;
}

/* Warn if the requested template differs from the training's. */
static void warn_of_template(const app *a)
{
    char *asked = NULL, *trained = trained_template(a);
    dt_chat_warn(a->reader.chat);
    if (dt_chat_spec(a->reader.chat, &asked) != DT_OK) dt_error_clear();
    if (asked && trained && strcmp(asked, trained) != 0)
        DT_WARN("--chat-template: the model was trained with the template %.200s, not with %.200s", trained, asked);
    free(asked);
    free(trained);
}

/* Tokens that end a sequence: the model's, and in conversations the template's end of turn. */
static dt_err find_ends(app *a)
{
    if (a->opt.chat) DT_TRY(dt_prompt_reader_chat(&a->reader));
    const int32_t own = a->tok ? dt_tokenizer_get_info(a->tok)->eos : -1,
                  turn = a->reader.chat ? dt_chat_end_token(a->reader.chat) : -1;
    a->n_eos = dt_ends_of_text(own, &a->frozen.from.generation, &a->frozen.mc, turn, a->eos);
    if (a->reader.chat && a->opt.chat_template && a->comm.rank == 0) warn_of_template(a);
    return DT_OK;
}

static dt_err open_catalogue(app *a)
{
    if (!a->opt.catalogue) return DT_OK;
    DT_CHECK(a->tok, DT_ERR_USAGE, "--catalogue needs a tokenizer; see --tokenizer");
    DT_TRY(dt_catalogue_open(&a->catalogue, a->opt.catalogue, &a->ledger));
    DT_TRY(dt_trie_open(&a->trie, a->catalogue, a->tok, DT_TRIE_TAIL, a->eos[0], a->frozen.mc.vocab_size, &a->ledger));
    a->only = dt_trie_constraint(a->trie);
    if (!a->opt.given.max_new) /* the default leaves room for every item */
        a->opt.max_new_tokens = dt_max_i64(a->opt.max_new_tokens, dt_trie_depth(a->trie));
    return DT_OK;
}

/* Rank 0 reads the file of --tools. */
static dt_err read_tools(app *a)
{
    enum { MAX_NBYTES = 16 << 20 };
    const char *file = a->opt.tools;
    char *text = NULL;
    size_t n = 0;
    json_t *list = NULL;
    dt_messages probe = {0};
    if (!file) return DT_OK;
    TOGETHER(a, a->comm.rank == 0 ? dt_read_file(file, MAX_NBYTES, &text, &n) : DT_OK);
    DT_TRY(dt_comm_share_text(&a->comm, &text, &n));
    dt_err err = dt_json_parse(&list, file, text, n, DT_JSON_NUL | DT_JSON_LAST_KEY);
    free(text);
    if (err == DT_OK && !(a->tools = json_pack("{s:o}", "tools", list)))
        err = dt_fail(DT_ERR_MEMORY, "out of memory for the tools");
    if (err == DT_OK) err = dt_error_prefix(dt_messages_take_tools(&probe, a->tools), "%s: ", file);
    dt_messages_free(&probe);
    TOGETHER(a, err);
    return DT_OK;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

static dt_err read_stream(FILE *in, const char *name, char **text, size_t *nbytes)
{
    char piece[1 << 16];
    dt_text t = {0};
    for (size_t n; (n = fread(piece, 1, sizeof piece, in)) > 0;) dt_text_append(&t, piece, n);
    dt_text_append(&t, "", 0);
    *text = t.bytes;
    *nbytes = t.n;
    DT_CHECK(!t.failed, DT_ERR_MEMORY, "%s: out of memory after %zu bytes", name, t.n);
    DT_CHECK_ERRNO(!ferror(in), DT_ERR_DATA, name, "cannot read");
    return DT_OK;
}

/* The file of JSON records; NULL: none. */
static const char *records_of(const options *o) { return o->answers ? o->answers : o->prompts; }

static dt_err read_prompts(const options *o, char **text, size_t *nbytes)
{
    const char *records = records_of(o);
    if (o->standard_input || (records && strcmp(records, "-") == 0))
        return read_stream(stdin, "standard input", text, nbytes);
    if (records) {
        FILE *in = fopen(records, "re");
        DT_CHECK_ERRNO(in, DT_ERR_DATA, records, "cannot read");
        const dt_err err = read_stream(in, records, text, nbytes);
        fclose(in);
        return err;
    }
    *text = strdup(o->prompt ? o->prompt : "");
    DT_CHECK(*text, DT_ERR_MEMORY, "out of memory for the prompt");
    *nbytes = strlen(*text);
    return DT_OK;
}

/* Only rank 0 reads standard input and files. Every rank receives the text. */
static dt_err share_prompts(app *a)
{
    if (a->opt.chat || a->opt.serve) return DT_OK;
    TOGETHER(a, a->comm.rank == 0 ? read_prompts(&a->opt, &a->text, &a->text_nbytes) : DT_OK);
    return dt_comm_share_text(&a->comm, &a->text, &a->text_nbytes);
}

static dt_err parse_prompts(app *a)
{
    const options *o = &a->opt;
    const char *records = records_of(o);
    const dt_prompt_format format = o->standard_input ? DT_PROMPT_LINES : records ? DT_PROMPT_JSONL : DT_PROMPT_WHOLE;
    const bool piped = o->standard_input || (records && strcmp(records, "-") == 0);
    const char *name = piped ? "standard input" : records ? records : "--prompt";
    return dt_prompts_parse(&a->prompts, name, a->text, a->text_nbytes, format, &a->reader);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* Images are in records under the names image, images, image_url and image_bytes, or come with /image. */
static bool may_have_images(const app *a)
{
    const options *o = &a->opt;
    return o->n_images > 0 || (o->chat && !o->prompt) || (records_of(o) && a->text && strstr(a->text, "\"image"));
}

static dt_err describe_model(app *a, dt_model_part part)
{
    const options *o = &a->opt;
    a->frozen.adapter = o->adapter;
    a->frozen.model_part = part;
    return dt_frozen_model_describe(&a->frozen, o->answers ? o->score : o->model, o->answers ? DT_LABELS_OF_SCORE : 0);
}

static dt_err find_model(app *a)
{
    TOGETHER(a, describe_model(a, a->opt.part));
    DT_TRY(share_prompts(a));
    if (a->opt.part != DT_MODEL_USUAL || !a->frozen.from.text_alone || !may_have_images(a)) return DT_OK;
    dt_frozen_model_close(&a->frozen);
    TOGETHER(a, describe_model(a, DT_MODEL_WHOLE));
    return DT_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static dt_err print_when_finished(void *ctx, dt_sequence *s)
{
    app *a = ctx;
    return s->finish != DT_FINISH_NONE && a->comm.nranks == 1 && !a->reward ? generate_put_finished(a) : DT_OK;
}

static dt_err stream_token(void *ctx, dt_sequence *s)
{
    app *a = ctx;
    if (a->comm.rank != 0) return DT_OK;
    DT_TRY(generate_stream(a, s, s->finish != DT_FINISH_NONE));
    if (s->finish != DT_FINISH_NONE) putchar('\n');
    return generate_flush(a);
}

/* max_len: maximum tokens of a sequence. Of these, max_prompt are in one of g->n_prompts shared slots. */
static dt_err open_model(app *a, const dt_generate_options *g, int32_t max_len, int32_t max_prompt, int32_t max_own)
{
    const dt_model_options mo = {.dtype = a->opt.dtype,
                                 .grad_dtype = a->opt.dtype,
                                 .max_tok = g->max_tok,
                                 .max_seq = g->n_slots,
                                 .max_pos = max_len,
                                 .cache_seqs = g->n_slots,
                                 .cache_len = max_own,
                                 .cache_prompts = g->n_prompts,
                                 .cache_prompt_len = max_prompt,
                                 .graphs = !a->opt.no_graphs,
                                 .max_top = g->beams.n_beams > 0 ? dt_beam_top(g) : g->max_top,
                                 .max_known = g->max_top,
                                 .max_listed = a->only.n_token,
                                 .max_images = g->max_images,
                                 .batch_invariant = true};
    DT_TRY(dt_model_open(&a->model, &a->frozen.mc, &mo, a->frozen.units, a->frozen.n_units, &a->dev, &a->frozen.source,
                         NULL, &a->phase));
    return a->trie ? dt_model_set_lists(a->model, a->only.token, a->only.n_token) : DT_OK;
}

static bool is_complete(void *ctx, const int32_t *ids, int32_t n_prompt, int32_t n_ids)
{
    (void)n_prompt; /* a stop text may begin in the prompt */
    return generate_stops(ctx, ids, n_ids);
}

static dt_generate_options make_options(app *a)
{
    return (dt_generate_options){.sampling = a->opt.sampling,
                                 .rules = a->opt.rules,
                                 .is_complete = a->opt.n_stop > 0 ? is_complete : NULL,
                                 .constraint = a->trie ? &a->only : NULL,
                                 .eos = a->eos,
                                 .n_eos = a->n_eos,
                                 .vocab_size = a->frozen.mc.vocab_size,
                                 .image = generate_bring_image,
                                 .logp = a->opt.logprobs,
                                 .ledger = &a->ledger,
                                 .ctx = a};
}

/* Generate one sequence after the other, because their text is printed as it is generated. All ranks do the same. */
static dt_err stream_all(app *a, const dt_decoder *decoder, const dt_generate_options *g, dt_generate_stats *stats)
{
    for (int i = 0; i < a->n_seqs; i++) {
        dt_sequence *s = &a->seqs[i];
        dt_generate_stats one;
        a->shown = 0;
        if (a->comm.rank == 0) generate_put_prompt(a, s);
        TOGETHER(a, generate_flush(a));
        DT_TRY(dt_generate(decoder, &s, 1, g, &one));
        stats->n_prompt_tok += one.n_prompt_tok;
        stats->n_new_tok += one.n_new_tok;
        stats->seconds += one.seconds;
        stats->prompt_seconds += one.prompt_seconds;
    }
    return DT_OK;
}

/* Cache slots for prompts shared by consecutive samples: the maximum number that start together at any
 * offset, and the same number again for groups that run long. 0: this rank has no shared prompts, or never
 * several samples of one at the same time. */
static int32_t count_prompts(const app *a, int32_t n_slots)
{
    const int32_t each = a->n_out / a->comm.nranks;
    if (each < 2 || n_slots < 2) return 0;
    return (int32_t)dt_min_i64(n_slots, 2 * dt_ceil_div(n_slots, each) + 1);
}

/* Set the number of concurrent sequences (whole searches with beams) and the tokens per pass. */
static void size_passes(const app *a, dt_generate_options *g, int n_mine, int64_t longest_prompt)
{
    const int64_t beams = a->opt.beams.n_beams, prompts = n_mine / a->n_out > 0 ? n_mine / a->n_out : 1,
                  fit = a->opt.batch_size / beams;
    g->n_slots = (int32_t)(a->opt.batch_size < n_mine ? a->opt.batch_size : n_mine > 0 ? n_mine : 1);
    if (beams > 1) {
        g->n_prompts = (int32_t)(fit < 1 ? 1 : fit < prompts ? fit : prompts);
        g->n_slots = (int32_t)beams * g->n_prompts;
    }
    if (a->opt.stream) g->n_slots = 1;
    if (beams <= 1) g->n_prompts = g->recompute_at > 0 ? 0 : count_prompts(a, g->n_slots);
    g->max_tok = (int32_t)(longest_prompt * g->n_slots < PREFILL_TOK ? longest_prompt * g->n_slots : PREFILL_TOK);
    if (g->max_tok < g->n_slots) g->max_tok = g->n_slots;
}

static dt_err decode(app *a, const dt_generate_options *g, dt_sequence *const *mine, int n_mine,
                     dt_generate_stats *stats)
{
    const dt_decoder decoder = dt_decoder_of_model(a->model);
    TOGETHER(a, dt_watchdog_start(&a->watchdog, &a->phase, &a->comm, a->opt.timeout_s));
    const dt_err err =
        a->opt.stream ? stream_all(a, &decoder, g, stats) : dt_generate(&decoder, mine, n_mine, g, stats);
    dt_watchdog_stop(
        &a->watchdog); /* the next step may wait for ranks with more work, which have their own watchdogs */
    /* In lockstep, the ranks have already agreed, or this rank alone failed in the middle of a pass. Otherwise, the
     * other ranks could work for hours on results that are never printed, so main ends the job. */
    return g->lockstep || err != DT_OK ? err : together(&a->comm, DT_OK);
}

/* Maximum tokens of a sequence in its own cache slot. */
static int32_t most_own(const app *a, const dt_generate_options *g)
{
    int32_t most = 1;
    for (const dt_sequence *s = a->seqs; s < a->seqs + a->n_seqs; s++) {
        const int32_t n = s->max_ids - (g->recompute_at > 0        ? 0
                                        : a->opt.beams.n_beams > 1 ? s->n_prompt
                                                                   : dt_sequence_shared(g, s));
        most = n > most ? n : most;
    }
    return most;
}

static dt_err generate(app *a, dt_sequence *const *mine, int n_mine, dt_generate_stats *stats)
{
    int32_t max_len = 1, n_prompt = 1;
    int64_t n_images = 0;
    for (int i = 0; i < a->n_seqs; i++) {
        const dt_sequence *s = &a->seqs[i];
        max_len = s->max_ids > max_len ? s->max_ids : max_len;
        n_prompt = s->n_prompt > n_prompt ? s->n_prompt : n_prompt;
        n_images += s->n_images;
    }
    dt_generate_options g = make_options(a);
    if (a->opt.beams.n_beams > 1) g.beams = a->opt.beams;
    g.recompute_at = dt_model_recompute_length(&a->frozen.mc, max_len);
    size_passes(a, &g, n_mine, n_prompt);
    generate_size_images(a, &g, n_images);
    g.on_token = a->opt.stream ? stream_token : print_when_finished;
    g.lockstep = a->opt.stage == 3 && a->comm.nranks > 1 ? &a->comm : NULL;
    TOGETHER(a, open_model(a, &g, max_len, n_prompt, most_own(a, &g)));
    return decode(a, &g, mine, n_mine, stats);
}

static int64_t conversation_length(const app *a)
{
    return dt_min_i64(a->opt.context > 0 ? a->opt.context : CHAT_LEN, dt_model_max_length(&a->frozen.mc));
}

/* --chat and --serve */
static dt_err converse(app *a)
{
    const int64_t len = conversation_length(a);
    const bool serves = a->opt.serve;
    dt_generate_options g = make_options(a);
    g.n_slots = serves ? (int32_t)a->opt.batch_size : 1;
    g.recompute_at = dt_model_recompute_length(&a->frozen.mc, len);
    g.max_tok = (int32_t)dt_max_i64(g.n_slots, dt_min_i64(len * g.n_slots, PREFILL_TOK));
    generate_size_images(a, &g, len);
    if (serves) {
        g.max_top = DT_MAX_LOGPROBS;
        g.logp = true;
        g.sampling.repetition_penalty = 2; /* requests may have one */
        g.is_complete = NULL;              /* rank 0 looks for stop texts */
    } else if (a->comm.nranks > 1) {
        g.lockstep = &a->comm; /* also at stage 0, so that all ranks learn of failures on rank 0 */
    }
    TOGETHER(a, open_model(a, &g, (int32_t)len, 0, (int32_t)len));
    const dt_decoder decoder = dt_decoder_of_model(a->model);
    return serves ? generate_serve(a, &decoder, &g, (int32_t)len) : generate_chat(a, &decoder, &g, (int32_t)len);
}

double generate_rate(int64_t n_tok, double seconds) { return seconds > 1e-4 ? (double)n_tok / seconds : 0; }

static dt_err report_speed(app *a, const dt_generate_stats *stats)
{
    int64_t sums[2] = {stats->n_prompt_tok, stats->n_new_tok};
    double seconds = stats->seconds, each[2] = {generate_rate(sums[0], stats->prompt_seconds),
                                                generate_rate(sums[1], stats->seconds - stats->prompt_seconds)};
    if (!a->opt.stream) { /* with --stream all ranks did the same work, which is counted once */
        DT_TRY(dt_comm_reduce_host_i64(&a->comm.mesh.data, sums, 2, DT_SUM));
        DT_TRY(dt_comm_reduce_host_f64(&a->comm.mesh.data, &seconds, 1, DT_MAX));
        DT_TRY(dt_comm_reduce_host_f64(&a->comm.mesh.data, each, 2, DT_SUM));
    }
    if (a->comm.rank > 0) return DT_OK;
    int n_written = 0; /* a search may find fewer sequences than requested */
    for (int i = 0; i < a->n_seqs; i++) n_written += a->seqs[i].finish != DT_FINISH_MISSING;
    fprintf(stderr,
            "dtrain-generate: %" PRId64 " new token%s in %.3f s: %.1f tokens/s (%d sequence%s, %" PRId64
            " prompt token%s, %d rank%s)",
            sums[1], sums[1] == 1 ? "" : "s", seconds, generate_rate(sums[1], seconds), n_written,
            n_written == 1 ? "" : "s", sums[0], sums[0] == 1 ? "" : "s", a->comm.nranks,
            a->comm.nranks == 1 ? "" : "s");
    if (each[0] > 0) fprintf(stderr, "; prompts at %.1f tokens/s", each[0]);
    if (each[1] > 0) fprintf(stderr, "%s new tokens at %.1f tokens/s", each[0] > 0 ? "," : ";", each[1]);
    fputc('\n', stderr);
    return DT_OK;
}

static dt_err run_sequences(app *a)
{
    dt_generate_stats stats = {0};
    int n_mine = 0;
    dt_sequence **mine = calloc((size_t)a->n_seqs + 1, sizeof *mine);
    dt_err err = together(&a->comm, mine ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for %d sequences", a->n_seqs));
    for (int i = 0; i < a->n_seqs && err == DT_OK; i++)
        if (generate_owner(a, i) == a->comm.rank) mine[n_mine++] = &a->seqs[i];
    for (int i = 0; i < n_mine && a->opt.answers; i++) mine[i]->finish = DT_FINISH_EOS; /* answers are complete */
    if (err == DT_OK && !a->opt.answers) err = generate(a, mine, n_mine, &stats);
    if (err == DT_OK && a->opt.score) err = generate_score(a, mine, n_mine);
    free(mine);
    DT_TRY(err);
    for (int r = 1; r < a->comm.nranks && !a->opt.stream; r++) TOGETHER(a, generate_fetch_from(a, r));
    TOGETHER(a, a->comm.rank == 0 && !a->opt.stream ? generate_put_finished(a) : DT_OK);
    if (!a->opt.answers) TOGETHER(a, report_speed(a, &stats));
    return a->opt.score ? generate_report_rewards(a) : DT_OK;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static dt_err prepare_prompts(app *a)
{
    if (a->opt.chat || a->opt.serve) return together(&a->comm, find_ends(a));
    TOGETHER(a, parse_prompts(a));
    free(a->text);
    a->text = NULL;
    TOGETHER(a, find_ends(a)); /* after the prompts, because messages add their template's end token */
    TOGETHER(a, open_catalogue(a));
    if (a->catalogue) DT_TRY(dt_comm_same_file(&a->comm, a->opt.catalogue, dt_catalogue_fingerprint(a->catalogue)));
    TOGETHER(a, generate_make_sequences(a));
    TOGETHER(a, a->trie ? generate_check_items(a) : DT_OK);
    TOGETHER(a, generate_find_images(a));
    return DT_OK;
}

static dt_err run_all(app *a, dt_err parsed)
{
    const options *o = &a->opt;
    DT_TRY(ranks_open(&a->comm, &a->phase, o->timeout_s, parsed));
    TOGETHER(a, o->serve ? dt_signals_install() : DT_OK);
    TOGETHER(
        a, o->stream && a->comm.nranks > 1 && o->stage == 0
               ? dt_fail(DT_ERR_USAGE, "--stream: expected one rank, or --zero-stage 3, found %d ranks", a->comm.nranks)
               : DT_OK);
    TOGETHER(a, a->comm.rank == 0 ? generate_begin_output(a) : DT_OK);
    DT_TRY(find_model(a));
    DT_TRY(dt_comm_same_file(&a->comm, a->frozen.from.config_name, dt_hash_text(a->frozen.mc.json)));
    if (o->answers) TOGETHER(a, generate_describe_head(a));
    if (o->score && !o->answers) TOGETHER(a, generate_describe_judge(a));
    TOGETHER(a,
             generate_take_defaults(&a->opt, &a->frozen.from.generation, a->frozen.mc.vocab_size, a->comm.rank == 0));
    TOGETHER(a, open_tokenizer(a));
    DT_TRY(read_tools(a));
    a->reader = (dt_prompt_reader){.tokenizer = a->tok,
                                   .encoder = a->encoder,
                                   .chat_template = o->chat_template ? o->chat_template : a->frozen.from.chat_template,
                                   .system = o->system,
                                   .tools = a->tools,
                                   .chat_flags = o->no_think ? DT_CHAT_NO_THINK : 0,
                                   .answers = o->answers != NULL,
                                   .vocab_size = a->frozen.mc.vocab_size};
    TOGETHER(a, generate_describe_images(a));
    if (o->top_logprobs == 0) DT_TRY(prepare_prompts(a));
    if (o->verbose && a->comm.rank == 0) generate_print_settings(a);
    TOGETHER(a, dt_watchdog_start(&a->watchdog, &a->phase, &a->comm, o->timeout_s));
    TOGETHER(a, ranks_open_device(&a->comm, &a->dev, &a->ledger, o->device, o->threads));
    TOGETHER(a, dt_comm_attach(&a->comm, &a->dev, "auto", true));
    dt_phase_enter(&a->phase, "load", "");
    const dt_zero_options kept = {.stage = (int)o->stage, .expert_group_size = DT_GROUPS_THAT_FIT};
    const dt_err err = dt_frozen_model_load(&a->frozen, &kept, o->dtype, &a->comm, &a->dev, NULL, &a->phase);
    dt_watchdog_stop(&a->watchdog);
    TOGETHER(a, err);
    DT_TRY(o->top_logprobs > 0 ? generate_logprobs(a) : o->serve || o->chat ? converse(a) : run_sequences(a));
    TOGETHER(a, generate_end_output(a)); /* does nothing on ranks without an output file */
    return DT_OK;
}

/* The partial output is removed before main may end the job. */
static dt_err run(void *self, dt_err parsed)
{
    const dt_err err = run_all(self, parsed);
    generate_drop_output(self);
    return err;
}

static void close_all(void *self)
{
    app *a = self;
    dt_watchdog_stop(&a->watchdog);
    dt_model_close(a->judging);
    dt_model_close(a->model);
    dt_frozen_model_close(&a->judge);
    dt_frozen_model_close(&a->frozen);
    for (int i = 0; i < a->n_seqs; i++) {
        free(a->seqs[i].ids);
        free(a->seqs[i].logps);
    }
    generate_free_options(&a->opt);
    free(a->seqs);
    free(a->text);
    free(a->reward);
    free(a->values);
    json_decref(a->head.config);
    generate_free_images(a);
    dt_trie_close(a->trie);
    dt_catalogue_close(a->catalogue);
    dt_prompt_reader_close(&a->reader);
    dt_prompts_free(&a->prompts);
    dt_encoder_close(a->encoder);
    dt_tokenizer_close(a->tok);
    json_decref(a->tools);
}

int main(int argc, char **argv)
{
    app a = {0};
    tool_start("dtrain-generate");
    const dt_err parsed = generate_parse_options(&a.opt, argc, argv);
    if (parsed == DT_OK && tool_answers(&generate_help, a.opt.help, a.opt.version)) return tool_end(DT_OK);
    setenv("DTRAIN_LOG", "warn", 0); /* standard output is reserved for generated text */
    a.plain_terminal = isatty(STDOUT_FILENO);
    if (parsed == DT_OK && a.opt.serve) dt_signals_hold(); /* keeps signals pending, also if it executes itself */
    tool_wait_fairly(argv);
    return ranks_main(&a.comm, &a.dev, &a, parsed, run, close_all, tool_end);
}

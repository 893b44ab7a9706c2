/* mpi_generate.c - ranks in lockstep run the same number of forward passes, however unequal their work is, and fail
 * together.
 * DEVICES: cpu queue */
#include "mpi_test.h"

#include "dtrain/generate/generate.h"
#include "host_sampler.h"

enum { VOCAB = 16, LEN = 40, N_SEQS = 9, MAX_SEQ = 2 };

/* Token 0 ends a sequence; this decoder gives it probability 0, so each sequence runs to its length. */
struct fake {
    int n_calls, n_empty;
    bool poisoned;
};

static dt_err fake_decode(void *self, const dt_batch *b, const int32_t *slot)
{
    struct fake *f = self;
    f->n_calls++;
    f->n_empty += b->n_tok == 0;
    return DT_OK;
}
static dt_err fake_logits(void *self, const dt_batch *b, float *logits)
{
    const struct fake *f = self;
    for (int i = 0; i < b->n_seq * VOCAB; i++)
        logits[i] = f->poisoned && f->n_calls == 5 ? NAN : i % VOCAB == 0 ? -INFINITY : 1;
    return DT_OK;
}
static dt_err fake_top(void *self, const dt_batch *b, const dt_top *t)
{
    float logits[MAX_SEQ * VOCAB];
    DT_TRY(fake_logits(self, b, logits));
    for (int s = 0; s < b->n_seq; s++) host_top(t, s, logits + s * VOCAB, VOCAB);
    return DT_OK;
}
static dt_err fake_draw(void *self, const dt_batch *b, const dt_draw *d)
{
    float logits[MAX_SEQ * VOCAB];
    DT_TRY(fake_logits(self, b, logits));
    for (int s = 0; s < b->n_seq; s++)
        host_draw(&d->how, logits + s * VOCAB, d->seen, VOCAB, d->uniform[s], &d->token[s], d->logp);
    return DT_OK;
}
static int32_t fake_keep(void *self, int32_t slot, int32_t n) { return n; }

struct work {
    dt_sequence seqs[N_SEQS], *mine[N_SEQS];
    int32_t ids[N_SEQS][LEN];
    int n_mine;
};

static dt_err fake_share(void *self, int32_t slot, int32_t prompt, int32_t n) { return DT_OK; }
static dt_err fake_move(void *self, int32_t n, const int32_t *src, const int32_t *dst) { return DT_OK; }

static dt_err generate(dt_comm *comm, struct fake *f, struct work *w, bool rank_0_alone, bool beams)
{
    static const int32_t eos[] = {0};
    dt_ledger ledger = {0};
    dt_generate_stats stats;
    memset(w, 0, sizeof *w);
    for (int i = 0; i < N_SEQS; i++) {
        w->seqs[i] = (dt_sequence){
            .number = (uint64_t)i, .ids = w->ids[i], .n_prompt = 1 + i % 3, .n_ids = 1 + i % 3, .max_ids = 10 + 3 * i};
        if (rank_0_alone ? comm->rank == 0 : i % comm->nranks == comm->rank) w->mine[w->n_mine++] = &w->seqs[i];
    }
    const dt_decoder d = {.self = f,
                          .decode = fake_decode,
                          .draw = fake_draw,
                          .top = fake_top,
                          .keep = fake_keep,
                          .share = fake_share,
                          .move = fake_move,
                          .prompt_slot = MAX_SEQ};
    const dt_beam_options how = {.n_beams = 2, .n_return = 1, .length_penalty = 1};
    const dt_generate_options opt = {.beams = beams ? how : (dt_beam_options){0},
                                     .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
                                     .eos = eos,
                                     .n_eos = 1,
                                     .vocab_size = VOCAB,
                                     .n_slots = MAX_SEQ,
                                     .n_prompts = MAX_SEQ / how.n_beams,
                                     .max_tok = 4,
                                     .lockstep = comm,
                                     .ledger = &ledger};
    return dt_generate(&d, w->mine, w->n_mine, &opt, &stats);
}

TEST(unequal_ranks_run_equally_many_passes)
{
    dt_comm comm = {0};
    struct work w;
    assert_all(MPI_COMM_WORLD, dt_comm_open(&comm) == DT_OK);
    for (int way = 0; way < 4; way++) {
        const bool alone = way % 2, beams = way / 2;
        struct fake f = {0};
        assert_all(MPI_COMM_WORLD, generate(&comm, &f, &w, alone, beams) == DT_OK);
        int64_t least = f.n_calls, most = f.n_calls;
        bool finished = f.n_calls > 0;
        for (int i = 0; i < w.n_mine; i++) finished &= w.mine[i]->finish == DT_FINISH_LENGTH;
        assert_all(MPI_COMM_WORLD, dt_comm_reduce_host_i64(dt_comm_all(&comm), &least, 1, DT_MIN) == DT_OK);
        assert_all(MPI_COMM_WORLD, dt_comm_reduce_host_i64(dt_comm_all(&comm), &most, 1, DT_MAX) == DT_OK);
        assert_all(MPI_COMM_WORLD, finished && least == most);
        assert_all(MPI_COMM_WORLD, !alone || comm.rank == 0 || f.n_empty == f.n_calls);
    }
    dt_comm_close(&comm);
}

TEST(one_rank_that_fails_stops_all)
{
    dt_comm comm = {0};
    assert_all(MPI_COMM_WORLD, dt_comm_open(&comm) == DT_OK);
    for (int way = 0; way < 2 * comm.nranks; way++) {
        const int bad = way / 2;
        struct work w;
        struct fake f = {.poisoned = comm.rank == bad};
        dt_error_clear();
        const dt_err err = generate(&comm, &f, &w, false, way % 2);
        assert_all(MPI_COMM_WORLD, err == DT_ERR_NONFINITE && f.n_calls == 5 && dt_comm_failed_together(&comm));
        assert_all(MPI_COMM_WORLD, dt_comm_prints_error(&comm) == (comm.rank == bad));
    }
    dt_error_clear();
    dt_comm_close(&comm);
}

MPI_TEST_MAIN(NULL, NULL)

/* mpi_sid.c - the RQ-VAE of dtrain-sid against PyTorch and against differences of a plain loop, k-means against what
 * its name says, and which codes items that collide are given, on any number of ranks.
 * NP: 1 3
 * DEVICES: cpu queue */
#include "cases.h"
#include "ranks.h"
#include "dtrain/io/json.h"
#include "dtrain/recommend/sid.h"

enum { MAX_PARAM = 2000, MAX_ROWS = 64, WIDTH = 12, DIM = 4, LEVELS = 3, CODES = 5 };

typedef struct fixture {
    dt_ledger ledger;
    dt_comm comm;
    dt_device dev;
    MPI_Comm mpi;
    dt_sid sid;
    dt_matrix_file rows;
    json_t *json;
    dt_rqvae *net;
    int64_t batch, n_param;
    double before[MAX_PARAM];
} fixture;

static double number(const json_t *j, const char *key) { return json_number_value(json_object_get(j, key)); }

static void numbers(const json_t *j, const char *key, double *out)
{
    const json_t *list = json_object_get(j, key);
    for (size_t i = 0; i < json_array_size(list); i++) out[i] = json_number_value(json_array_get(list, i));
}

static bool read_fixture(fixture *f, const char *path)
{
    char *text = NULL;
    size_t nbytes = 0;
    const bool ok = dt_matrix_file_open(&f->rows, "tests/data/sid/items.npy", NULL) == DT_OK &&
                    dt_read_file(path, 1 << 20, &text, &nbytes) == DT_OK &&
                    dt_json_parse(&f->json, path, text, nbytes, 0) == DT_OK;
    free(text);
    return ok;
}

static bool open_net(fixture *f)
{
    float param[MAX_PARAM];
    int64_t hidden[2];
    for (int i = 0; i < 2; i++)
        hidden[i] = json_integer_value(json_array_get(json_object_get(f->json, "hidden"), (size_t)i));
    const dt_rqvae_options o = {.width = WIDTH,
                                .dim = (int64_t)number(f->json, "dim"),
                                .residual = number(f->json, "dim") == WIDTH,
                                .hidden = hidden,
                                .n_hidden = 2,
                                .beta = number(f->json, "beta"),
                                .lr = number(f->json, "lr"),
                                .weight_decay = number(f->json, "weight_decay"),
                                .clip = number(f->json, "clip")};
    f->batch = (int64_t)number(f->json, "batch");
    f->n_param = (int64_t)json_array_size(json_object_get(f->json, "before"));
    numbers(f->json, "before", f->before);
    for (int64_t i = 0; i < f->n_param; i++) param[i] = (float)f->before[i];
    return dt_rqvae_open(&f->net, &f->sid, &o) == DT_OK && dt_rqvae_n_param(f->net) == f->n_param &&
           dt_rqvae_put(f->net, param) == DT_OK;
}

static int open_with(void **state, const char *path)
{
    static fixture f;
    *state = &f;
    if (!open_ranks(&f.comm, &f.dev, &f.ledger, &f.mpi)) return -1;
    if (f.dev.ops->make_reproducible) f.dev.ops->make_reproducible(&f.dev);
    f.sid = (dt_sid){
        .comm = &f.comm, .dev = &f.dev, .block = 16, .n_codes = CODES, .n_levels = LEVELS, .seed = 5}; /* 3 blocks */
    const bool ok = read_fixture(&f, path) && open_net(&f);
    if (!ok) print_error("fixture: %s\n", dt_error_message());
    return vote_ranks(f.mpi, ok) ? 0 : -1;
}

static int open_all(void **state) { return open_with(state, "tests/data/sid/rqvae.json"); }
static int open_plus(void **state) { return open_with(state, "tests/data/sid/plus.json"); }

static int close_all(void **state)
{
    fixture *f = *state;
    dt_rqvae_close(f->net);
    dt_matrix_file_close(&f->rows);
    json_decref(f->json);
    dt_comm_close(&f->comm);
    dt_device_close(&f->dev);
    return vote_ranks(MPI_COMM_WORLD, atomic_load(&f->ledger.total_now) == 0) ? 0 : -1;
}

/* ---- the loss in plain loops, in double -------------------------------------------------------------------------- */

typedef struct pass {
    double z[DIM], q[DIM], left[LEVELS][DIM], y[WIDTH];
    int code[LEVELS];
} pass;

static const int SIZES[] = {WIDTH, 9, 6, DIM, 6, 9, WIDTH}; /* of the fixture; relu after all but the 3rd and last */

static const double *layers(const double *p, int first, int end, const double *x, double *y)
{
    double a[2][WIDTH];
    memcpy(a[0], x, (size_t)SIZES[first] * sizeof *x);
    for (int l = first; l < end; l++) {
        const int in = SIZES[l], out = SIZES[l + 1];
        for (int o = 0; o < out; o++) {
            double sum = p[in * out + o];
            for (int i = 0; i < in; i++) sum += p[o * in + i] * a[(l - first) % 2][i];
            a[(l - first + 1) % 2][o] = sum < 0 && l != 2 && l != 5 ? 0 : sum;
        }
        p += (in + 1) * out;
    }
    memcpy(y, a[(end - first) % 2], (size_t)SIZES[end] * sizeof *y);
    return p;
}

static const double *code_of(const double *books, int l, int k) { return books + (l * CODES + k) * DIM; }

/* What a row's codes are, and what they leave. */
static void quantise_plain(const double *books, pass *t)
{
    double r[DIM];
    memcpy(r, t->z, sizeof r);
    memset(t->q, 0, sizeof t->q);
    for (int l = 0; l < LEVELS; l++) {
        double best = INFINITY;
        memcpy(t->left[l], r, sizeof r);
        for (int k = 0; k < CODES; k++) {
            double d = 0;
            for (int c = 0; c < DIM; c++) d += pow(r[c] - code_of(books, l, k)[c], 2);
            if (d < best) best = d, t->code[l] = k;
        }
        for (int c = 0; c < DIM; c++) r[c] -= code_of(books, l, t->code[l])[c];
        for (int c = 0; c < DIM; c++) t->q[c] += code_of(books, l, t->code[l])[c];
    }
}

/* The loss of a row with the parameters p, where what gradients do not pass is that of p0: codes, q - z, what is left
 * for each level, and its codes where the encoder commits to them. */
static double row_loss(const fixture *f, const double *p, const double *p0, const float *x)
{
    double xd[WIDTH], loss = 0, decoder_input[DIM];
    pass now = {0}, fixed = {0};
    for (int c = 0; c < WIDTH; c++) xd[c] = x[c];
    layers(p0, 0, 3, xd, fixed.z);
    const double *decoder = layers(p, 0, 3, xd, now.z);
    const double *books0 = p0 + f->n_param - LEVELS * CODES * DIM, *books = p + f->n_param - LEVELS * CODES * DIM;
    quantise_plain(books0, &fixed);
    for (int c = 0; c < DIM; c++) decoder_input[c] = now.z[c] + fixed.q[c] - fixed.z[c];
    layers(decoder, 3, 6, decoder_input, now.y);
    for (int c = 0; c < WIDTH; c++) loss += pow(now.y[c] - xd[c], 2) / WIDTH;
    for (int l = 0; l < LEVELS; l++)
        for (int c = 0; c < DIM; c++) {
            const double r = l == 0 ? now.z[c] : fixed.left[l][c], e = code_of(books, l, fixed.code[l])[c];
            loss += pow(e - fixed.left[l][c], 2) / (DIM * LEVELS);
            loss += number(f->json, "beta") * pow(r - code_of(books0, l, fixed.code[l])[c], 2) / (DIM * LEVELS);
        }
    return loss;
}

static double batch_loss(const fixture *f, const double *p, const float *rows)
{
    double sum = 0;
    for (int64_t i = 0; i < f->batch; i++) sum += row_loss(f, p, f->before, rows + i * WIDTH);
    return sum / (double)f->batch;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* Six layers of sums of at most 12 products and a bias, each of 13 roundings to 2^-24; the loss squares what they make,
 * and its gradient goes the same way back. */
#define ROUNDING (2 * 6 * 13 * 0x1p-24)

/* |a - b| over |b|. */
static double apart(const float *a, const double *b, const double *from, int64_t n)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        off += pow(a[i] - b[i], 2);
        size += pow(b[i] - (from ? from[i] : 0), 2);
    }
    return sqrt(off / size);
}

TEST_WITH(the_gradient_is_that_of_the_loss, open_all, close_all)
{
    fixture *f = *state;
    float grad[MAX_PARAM], rows[MAX_ROWS * WIDTH];
    double p[MAX_PARAM], by_differences[MAX_PARAM];
    dt_rqvae_loss loss;
    bool ok = dt_matrix_file_read(&f->rows, 0, f->batch, rows) == DT_OK;
    ok = dt_rqvae_backward(f->net, &f->rows, NULL, f->batch, &loss) == DT_OK && ok;
    ok = ok && dt_rqvae_get_gradient(f->net, grad) == DT_OK;
    memcpy(p, f->before, sizeof p);
    const double h = 1e-6, plain = batch_loss(f, p, rows);
    for (int64_t i = 0; i < f->n_param; i++) {
        p[i] = f->before[i] + h;
        const double more = batch_loss(f, p, rows);
        p[i] = f->before[i] - h;
        by_differences[i] = (more - batch_loss(f, p, rows)) / (2 * h);
        p[i] = f->before[i];
    }
    assert_all(f->mpi, ok);
    assert_all(f->mpi, fabs(loss.total - plain) <= ROUNDING * plain);
    assert_all(f->mpi, apart(grad, by_differences, NULL, f->n_param) <= ROUNDING); /* differences are off by 1e-10 */
}

/* A part of the loss that was `first` before the steps. Adam divides an element of the gradient by its own size: those
 * of a tenth of the usual size are off by ten times ROUNDING, and so is the way that was gone, and what the loss has
 * lost on it. */
static bool is_loss(double found, double expected, double first)
{
    return fabs(found - expected) <= ROUNDING * expected + 10 * ROUNDING * (first - expected);
}

static void take_ten_steps(fixture *f)
{
    double after[MAX_PARAM], gradient[MAX_PARAM];
    float param[MAX_PARAM], grad[MAX_PARAM];
    const json_t *losses = json_object_get(f->json, "losses");
    double first[2], now[2];
    bool ok = true;
    for (size_t t = 0; t < json_array_size(losses); t++) {
        for (size_t i = 0; i < 2; i++) now[i] = json_number_value(json_array_get(json_array_get(losses, t), i));
        if (t == 0) memcpy(first, now, sizeof first);
        dt_rqvae_loss loss;
        ok = dt_rqvae_backward(f->net, &f->rows, NULL, f->batch, &loss) == DT_OK && ok;
        if (t == 0) ok = dt_rqvae_get_gradient(f->net, grad) == DT_OK && ok;
        ok = dt_rqvae_update(f->net) == DT_OK && ok;
        ok = ok && is_loss(loss.reconstruction, now[0], first[0]) && is_loss(loss.quantisation, now[1], first[1]);
    }
    assert_all(f->mpi, ok);
    numbers(f->json, "after", after);
    numbers(f->json, "gradient", gradient);
    assert_all(f->mpi, dt_rqvae_get(f->net, param) == DT_OK);
    assert_all(f->mpi, apart(grad, gradient, NULL, f->n_param) <= ROUNDING);
    assert_all(f->mpi, apart(param, after, f->before, f->n_param) <= 10 * ROUNDING); /* of the way that was gone */
}

TEST_WITH(ten_steps_are_those_of_pytorch, open_all, close_all) { take_ten_steps(*state); }
TEST_WITH(ten_steps_with_a_residual_are_those_of_pytorch, open_plus, close_all) { take_ten_steps(*state); }

/* The encoder adds zero at first, so the codebooks are those of residual k-means on the embeddings. */
TEST_WITH(a_residual_begins_with_kmeans, open_plus, close_all)
{
    fixture *f = *state;
    enum { N = 60, ELEMS = CODES * WIDTH };
    static const int64_t hidden[] = {9, 6};
    dt_rqvae_options o = {.width = WIDTH, .dim = WIDTH, .residual = true, .hidden = hidden, .n_hidden = 2};
    dt_sid_kmeans how = {.max_iterations = 100, .balanced = true};
    float param[MAX_PARAM];
    int32_t code[N];
    double objective;
    dt_rqvae *net = NULL;
    dt_sid_points p = {0};
    dt_sid_book b = {0};
    bool ok = dt_rqvae_open(&net, &f->sid, &o) == DT_OK && dt_sid_points_alloc(&f->sid, &p, N, WIDTH) == DT_OK &&
              dt_sid_points_read(&f->sid, &p, &f->rows) == DT_OK && dt_sid_book_alloc(&f->sid, &b, WIDTH) == DT_OK &&
              dt_rqvae_seed(net, &f->rows, NULL, N, &how) == DT_OK && dt_rqvae_get(net, param) == DT_OK;
    for (; how.level < LEVELS && ok; how.level++) {
        const float *book = param + f->n_param - (LEVELS - how.level) * ELEMS;
        ok = dt_sid_points_measure(&f->sid, &p) == DT_OK &&
             dt_sid_kmeans_fit(&f->sid, &how, &p, &b, code, &objective) == DT_OK &&
             dt_sid_points_subtract(&f->sid, &p, b.rows.ptr, code) == DT_OK &&
             memcmp(b.host, book, ELEMS * sizeof *book) == 0;
    }
    assert_all(f->mpi, ok);
    dt_rqvae_close(net), net = NULL;
    o.dim = DIM;
    assert_all(f->mpi, dt_rqvae_open(&net, &f->sid, &o) == DT_ERR_USAGE);
    dt_sid_points_free(&f->sid, &p);
    dt_sid_book_free(&b);
}

/* The mean square of n normal samples has a relative error of sqrt(2 / n). It is off by five times as much in one of
 * two million layers. */
TEST_WITH(weights_begin_as_their_layers_want, open_all, close_all)
{
    fixture *f = *state;
    enum { FIRST = 64, SECOND = 48, N = 20000 };
    const int64_t hidden[] = {FIRST, SECOND}, sizes[] = {WIDTH, FIRST, SECOND, DIM, SECOND, FIRST, WIDTH};
    const dt_rqvae_options o = {.width = WIDTH, .dim = DIM, .hidden = hidden, .n_hidden = 2};
    float *param = malloc(N * sizeof *param);
    const float *p = param;
    dt_rqvae *net = NULL;
    bool ok = param && dt_rqvae_open(&net, &f->sid, &o) == DT_OK && dt_rqvae_n_param(net) <= N &&
              dt_rqvae_get(net, param) == DT_OK;
    for (int l = 0; l < 6 && ok; l++) {
        const int64_t n = sizes[l] * sizes[l + 1];
        double squares = 0;
        for (int64_t i = 0; i < n; i++) squares += (double)p[i] * p[i] / (double)n;
        const double want = 2.0 / (double)(sizes[l] + sizes[l + 1]);
        ok = fabs(squares / want - 1) < 5 * sqrt(2.0 / (double)n);
        p += n;
        for (int64_t i = 0; i < sizes[l + 1]; i++) ok = ok && p[i] == 0;
        p += sizes[l + 1];
    }
    for (; ok && p < param + dt_rqvae_n_param(net); p++) ok = *p == 0;
    assert_all(f->mpi, ok);
    dt_rqvae_close(net);
    free(param);
}

/* k-means has come to rest when each code is the mean of the items that are nearest to it; of what it leaves the next
 * level is made. */
TEST_WITH(codebooks_begin_as_the_means_of_their_items, open_all, close_all)
{
    fixture *f = *state;
    enum { N = 60 };
    float rows[N * WIDTH], param[MAX_PARAM];
    bool ok = dt_matrix_file_read(&f->rows, 0, N, rows) == DT_OK &&
              dt_rqvae_seed(f->net, &f->rows, NULL, N, &(dt_sid_kmeans){.max_iterations = 100}) == DT_OK &&
              dt_rqvae_get(f->net, param) == DT_OK;
    assert_all(f->mpi, ok);
    double p[MAX_PARAM], sum[LEVELS][CODES][DIM] = {{{0}}}, size = 0;
    int count[LEVELS][CODES] = {{0}};
    for (int64_t i = 0; i < f->n_param; i++) p[i] = param[i];
    const double *books = p + f->n_param - LEVELS * CODES * DIM;
    for (int i = 0; i < N; i++) {
        double x[WIDTH];
        pass t = {0};
        for (int c = 0; c < WIDTH; c++) x[c] = rows[i * WIDTH + c];
        layers(p, 0, 3, x, t.z);
        quantise_plain(books, &t);
        for (int c = 0; c < DIM; c++) size = fmax(size, fabs(t.z[c]));
        for (int l = 0; l < LEVELS; l++) {
            count[l][t.code[l]]++;
            for (int c = 0; c < DIM; c++) sum[l][t.code[l]][c] += t.left[l][c];
        }
    }
    for (int l = 0; l < LEVELS; l++)
        for (int k = 0; k < CODES; k++)
            for (int c = 0; c < DIM; c++)
                ok = ok && count[l][k] > 0 &&
                     fabs(sum[l][k][c] / count[l][k] - code_of(books, l, k)[c]) <= ROUNDING * size;
    assert_all(f->mpi, ok);
}

/* *rounding: what it may be off by where a distance is |x|^2 - 2 (x e - |e|^2/2), the products and their sum of WIDTH
 * + 1 terms in float, |e|^2/2 and the distance once more: (WIDTH + 4) 2^-24 of |x|^2 + 2 |e|^2. */
static double objective_of(const float *x, int64_t n, const float *book, const int32_t *code, double *rounding)
{
    double sum = 0;
    *rounding = 0;
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < WIDTH; c++) {
            const double a = x[i * WIDTH + c], e = book[code[i] * WIDTH + c];
            sum += pow(a - e, 2);
            *rounding += (WIDTH + 4) * 0x1p-24 * (a * a + 2 * e * e);
        }
    return sum;
}

/* More iterations never end at a larger sum, and the sum is that of what comes out. */
TEST_WITH(the_kmeans_objective_decreases, open_all, close_all)
{
    fixture *f = *state;
    enum { N = 300 };
    float *x = malloc((size_t)N * WIDTH * sizeof *x);
    int32_t code[N];
    dt_sid_points p = {0};
    dt_sid_book b = {0};
    bool ok = x && dt_matrix_file_read(&f->rows, 0, N, x) == DT_OK &&
              dt_sid_points_alloc(&f->sid, &p, N, WIDTH) == DT_OK && dt_sid_book_alloc(&f->sid, &b, WIDTH) == DT_OK &&
              dt_sid_points_read(&f->sid, &p, &f->rows) == DT_OK;
    assert_all(f->mpi, ok);
    for (int balanced = 0; balanced < 2; balanced++) {
        double last = INFINITY, rounding = 0, off = 0;
        for (int iterations = 0; iterations < 8; iterations++) {
            const dt_sid_kmeans how = {.max_iterations = iterations, .balanced = balanced};
            double objective = 0;
            int64_t count[CODES] = {0};
            ok = ok && dt_sid_points_measure(&f->sid, &p) == DT_OK &&
                 dt_sid_kmeans_fit(&f->sid, &how, &p, &b, code, &objective) == DT_OK;
            for (int i = 0; i < N && ok; i++) count[code[i]]++;
            for (int k = 0; k < CODES; k++) ok = ok && (!balanced || count[k] == N / CODES);
            const double plain = ok ? objective_of(x, N, b.host, code, &rounding) : 0;
            /* where a balanced assignment was refused the codes have moved after it, to the means of their items, which
             * is nearer */
            ok = ok && plain <= objective + rounding && (balanced || plain >= objective - rounding);
            /* the sums of two assignments are off, and so are the distances by which the codes were chosen */
            off = fmax(off, rounding);
            ok = ok && objective <= last + 4 * off;
            last = objective;
        }
        assert_all(f->mpi, ok);
    }
    dt_sid_book_free(&b);
    dt_sid_points_free(&f->sid, &p);
    free(x);
}

/* Items at as many places as there are codes: every code is one of them. */
TEST_WITH(kmeans_finds_separated_clusters, open_all, close_all)
{
    fixture *f = *state;
    enum { N = 40 };
    int32_t code[N];
    double objective = 1;
    dt_sid_points p = {0};
    dt_sid_book b = {0};
    bool ok = dt_sid_points_alloc(&f->sid, &p, N, 2) == DT_OK && dt_sid_book_alloc(&f->sid, &b, 2) == DT_OK;
    float host[16 * 2];
    for (int64_t round = 0; round < dt_sid_rounds(&f->sid, N) && ok; round++) {
        const int64_t first = (round * f->comm.nranks + f->comm.rank) * 16;
        for (int64_t i = 0; i < 16; i++) host[2 * i] = (float)((first + i) % CODES), host[2 * i + 1] = 1;
        ok = f->dev.ops->copy(&f->dev, (float *)p.rows.ptr + round * 32, host, sizeof host, NULL) == DT_OK &&
             f->dev.ops->stream_sync(&f->dev, NULL) == DT_OK;
    }
    const dt_sid_kmeans how = {.max_iterations = 10};
    assert_all(f->mpi, ok);
    ok = dt_sid_points_measure(&f->sid, &p) == DT_OK &&
         dt_sid_kmeans_fit(&f->sid, &how, &p, &b, code, &objective) == DT_OK;
    assert_all(f->mpi, ok && objective == 0);
    for (int i = 0; i < N; i++) ok = ok && b.host[2 * code[i]] == (float)(i % CODES);
    assert_all(f->mpi, ok);
    dt_sid_book_free(&b);
    dt_sid_points_free(&f->sid, &p);
}

/* n items of one number each, x, on one level whose codes are `book`. */
static bool resolve(fixture *f, const dt_sid_sinkhorn *how, int64_t n, const float *x, const float *book, int32_t *code,
                    int64_t *n_rounds)
{
    dt_sid s = f->sid;
    dt_sid_points p = {0};
    dt_sid_book b = {0};
    int32_t *const codes[] = {code};
    s.n_levels = 1, s.block = 2;
    bool ok = dt_sid_points_alloc(&s, &p, n, 1) == DT_OK && dt_sid_book_alloc(&s, &b, 1) == DT_OK;
    for (int64_t round = 0; round < dt_sid_rounds(&s, n) && ok; round++) {
        const int64_t first = (round * f->comm.nranks + f->comm.rank) * s.block;
        for (int64_t i = first; i < n && i < first + s.block && ok; i++)
            ok = f->dev.ops->copy(&f->dev, (float *)p.rows.ptr + round * s.block + i - first, x + i, sizeof *x, NULL) ==
                 DT_OK;
    }
    memcpy(b.host, book, CODES * sizeof *book);
    ok = ok && dt_sid_book_set(&s, &b) == DT_OK; /* waits */
    assert_all(f->mpi, ok);
    ok = dt_sid_points_measure(&s, &p) == DT_OK && dt_sid_resolve(&s, how, &p, &b, codes, n_rounds) == DT_OK;
    dt_sid_book_free(&b);
    dt_sid_points_free(&s, &p);
    return ok;
}

/* Four of five items have the same first code: the first of them keeps it, and the others take the nearest free
 * code, one after the other. */
TEST_WITH(items_that_collide_take_the_nearest_free_codes, open_all, close_all)
{
    fixture *f = *state;
    static const float x[] = {0, 0, 0, 9, 0}, book[CODES] = {0, 4, -2, 3, 1};
    static const int32_t want[] = {0, 4, 2, 3, 1};
    int32_t code[] = {0, 0, 0, 3, 0};
    int64_t n_rounds = -1;
    const bool ok =
        resolve(f, &(dt_sid_sinkhorn){.epsilon = 1, .iterations = 1, .distinct = true}, 5, x, book, code, &n_rounds);
    assert_all(f->mpi, ok && n_rounds == 0 && memcmp(code, want, sizeof want) == 0);
}

/* As many items as there are codes. Two are nearest to 0; a plan with even rows and columns gives each its own code,
 * and moves the one at 0.8 on to 2, so that 1 is free for that at 0.4. */
TEST_WITH(a_round_separates_different_items, open_all, close_all)
{
    fixture *f = *state;
    static const float x[] = {3, 0.8f, 4, 0, 0.4f}, book[CODES] = {0, 1, 2, 3, 4};
    static const int32_t want[] = {3, 2, 4, 0, 1};
    int32_t code[] = {2, 2, 2, 2, 2};
    int64_t n_rounds = -1;
    const bool ok =
        resolve(f, &(dt_sid_sinkhorn){.epsilon = 0.01, .iterations = 50, .max_rounds = 4}, 5, x, book, code, &n_rounds);
    assert_all(f->mpi, ok && n_rounds == 1 && memcmp(code, want, sizeof want) == 0);
}

/* Rounds go on in vain, and as none is better than the beginning, that counts. */
TEST_WITH(no_round_separates_equal_items, open_all, close_all)
{
    fixture *f = *state;
    static const float x[] = {3, 3, 0}, book[CODES] = {0, 1, 2, 3, 4};
    static const int32_t want[] = {3, 3, 0};
    int32_t code[] = {3, 3, 0};
    int64_t n_rounds = -1;
    const bool ok =
        resolve(f, &(dt_sid_sinkhorn){.epsilon = 0.01, .iterations = 50, .max_rounds = 4}, 3, x, book, code, &n_rounds);
    assert_all(f->mpi, ok && n_rounds == 4 && memcmp(code, want, sizeof want) == 0);
}

MPI_TEST_MAIN(NULL, NULL)

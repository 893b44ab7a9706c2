/* mpi_loss_scale.c - whole runs in fp16 with a dynamic loss scale against torch.amp.GradScaler
 * (make_loss_scale_fixtures.py): the same scales, the same steps left out, losses, norms and weights.
 * NP: 1 2
 * DEVICES: cpu queue */
#include "cases.h"
#include "ref_model.h"
#include "run_fixture.h"
#include <jansson.h>

static double number(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }

static dt_err write_case_data(const char *path, const json_t *one)
{
    enum { MOST = 256 };
    uint16_t tokens[MOST];
    const int n = (int)number(one, "n_tokens"), n_vocab = (int)number(one, "n_vocab");
    const uint64_t first = (uint64_t)number(one, "first");
    DT_CHECK(n > 0 && n <= MOST, DT_ERR_ARG, "%d tokens", n);
    for (int i = 0; i < n; i++) tokens[i] = (uint16_t)(dt_mix64(first + (uint64_t)i) % (uint64_t)n_vocab);
    return write_tokens(path, tokens, (hsize_t)n, (uint64_t)n_vocab);
}

/* Both sides round in fp16, about as often, in other places: each is as far from the run in fp32 as PyTorch's is, which
 * the file says, and so they are at most twice as far from each other; once more for chance. */
static bool is_near(const char *what, int step, double expected, double found, double drift)
{
    const double allowed = 3 * drift * fabs(expected);
    if (fabs(found - expected) <= allowed) return true;
    print_error("step %d, %s: expected %.9g, found %.9g, allowed %.2g\n", step, what, expected, found, allowed);
    return false;
}

static bool same_step(const json_t *want, const json_t *line, int step, const json_t *drift)
{
    const bool skipped = json_is_true(json_object_get(want, "skipped"));
    bool ok = number(line, "step") == step && number(line, "loss_scale") == number(want, "scale") &&
              json_is_true(json_object_get(line, "skipped")) == skipped;
    if (!ok)
        print_error("step %d: expected scale %g%s, found %g%s\n", step, number(want, "scale"),
                    skipped ? ", skipped" : "", number(line, "loss_scale"),
                    json_is_true(json_object_get(line, "skipped")) ? ", skipped" : "");
    ok = is_near("loss", step, number(want, "loss"), number(line, "loss"), number(drift, "loss")) && ok;
    if (skipped) return ok;
    return is_near("norm", step, number(want, "norm"), number(line, "grad_norm"), number(drift, "norm")) && ok;
}

static bool same_trace(const char *path, const json_t *one)
{
    char line[4096];
    int n = 0;
    bool ok = true;
    const json_t *steps = json_object_get(one, "steps");
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        json_t *object = json_loads(line, 0, NULL);
        ok = same_step(json_array_get(steps, (size_t)n), object, n + 1, json_object_get(one, "drift")) && ok;
        json_decref(object);
        n++;
    }
    if (file) fclose(file);
    return ok && n == (int)json_array_size(steps);
}

/* What training has made of a tensor, less the formula that it began with. */
static bool same_tensor(hid_t file, const char *name, const json_t *want, double drift)
{
    char path[160], key[160];
    double norm = 0, dot = 0;
    snprintf(path, sizeof path, "/model/%s", name);
    snprintf(key, sizeof key, "dot.%s", name);
    const hid_t d = H5Dopen2(file, path, H5P_DEFAULT), space = H5Dget_space(d);
    const hssize_t n = H5Sget_simple_extent_npoints(space);
    dt_tensor t = {.n_dims = H5Sget_simple_extent_ndims(space)};
    snprintf(t.name, sizeof t.name, "%s", name);
    float *x = calloc((size_t)(n > 0 ? n : 1), sizeof *x);
    bool ok = d >= 0 && n > 0 && H5Dread(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) >= 0;
    for (int64_t i = 0; i < n; i++) {
        const double moved = (double)x[i] - (double)(float)ref_weight(&t, i);
        norm += moved * moved;
        dot += moved * ref_number(key, i);
    }
    H5Sclose(space), H5Dclose(d);
    free(x);
    /* of the product with values of size 0.29, independent of the errors, a third of that would do */
    const double length = number(want, "norm");
    ok = is_near(name, 0, length, sqrt(norm), drift) && ok;
    ok = fabs(dot - number(want, "dot")) <= 3 * drift * length && ok;
    if (!ok)
        print_error("%s: moved by %.9g, product %.9g, expected %.9g, %.9g\n", name, sqrt(norm), dot, length,
                    number(want, "dot"));
    return ok;
}

static bool same_weights(const char *path, const json_t *one)
{
    const char *name;
    json_t *tensor;
    hid_t file;
    if (dt_h5_open(path, &file, NULL) != DT_OK) return false;
    bool ok = true;
    json_object_foreach(json_object_get(one, "tensors"), name, tensor) ok =
        same_tensor(file, name, tensor, number(json_object_get(one, "drift"), "moved")) && ok;
    H5Fclose(file);
    return ok;
}

/* One micro-step, so that gradients are in fp16 as those of PyTorch are: sums in fp32 overflow later. */
static const char *const layouts[][3] = {
    {"zero.stage=0", "", ""},
    {"zero.stage=2", "zero.offload_optimizer=cpu", "model.activation_checkpointing=block"},
    {"zero.stage=3", "zero.offload_optimizer=nvme", "zero.offload_param=nvme"},
    {"zero.stage=1", "zero.offload_optimizer=nvme", "zero.reduce_bucket_size=500"},
};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };

static outcome run_case(const struct fixture *f, const json_t *one, int k, const char *out)
{
    char model[96], data[192], to[192], path[160], steps[32], micro[48];
    const char *args[12] = {
        model, data, to, path, steps, micro, "checkpoint.save_steps=0", "log.report_to=jsonl", "run.threads=1"};
    int n = 9, nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    snprintf(model, sizeof model, "model.path=tests/data/hf/%s", json_string_value(json_object_get(one, "model")));
    snprintf(data, sizeof data, "data.train=%s/scaled.h5", f->dir);
    snprintf(to, sizeof to, "run.output_dir=%s", out);
    snprintf(path, sizeof path, "zero.nvme_path=%s", f->dir);
    snprintf(steps, sizeof steps, "run.max_steps=%d", (int)json_array_size(json_object_get(one, "steps")));
    snprintf(micro, sizeof micro, "batch.micro_batch_size=%d", (int)number(one, "samples") / nranks);
    for (int i = 0; i < 3; i++)
        if (*layouts[k][i]) args[n++] = layouts[k][i];
    return run_text(json_string_value(json_object_get(one, "config")), NULL, NULL, n, args);
}

static bool same_run(const char *out, const json_t *one)
{
    char path[224];
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    const bool trace = same_trace(path, one);
    snprintf(path, sizeof path, "%s/checkpoints/step-%08d.h5", out,
             (int)json_array_size(json_object_get(one, "steps")));
    return same_weights(path, one) && trace;
}

TEST_WITH(fp16_runs_agree_with_grad_scaler, open_fixture, close_fixture)
{
    const struct fixture *f = *state;
    char path[160];
    json_t *cases = json_load_file("tests/data/loss_scale.json", 0, NULL);
    snprintf(path, sizeof path, "%s/scaled.h5", f->dir);
    assert_all(MPI_COMM_WORLD, json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        assert_all(MPI_COMM_WORLD, this_rank() || write_case_data(path, one) == DT_OK);
        for (int k = (int)i % 2; k < N_LAYOUTS; k += 2) { /* each layout for two of the models */
            char out[160];
            snprintf(out, sizeof out, "%s/%d-%d", f->dir, (int)i, k);
            const outcome o = run_case(f, one, k, out);
            const bool same = !o.err && (this_rank() || same_run(out, one));
            if (!same) print_error("case %d, %s %s\n", (int)i, layouts[k][0], layouts[k][1]);
            assert_all(MPI_COMM_WORLD, same && o.left == 0);
        }
    }
    json_decref(cases);
}

MPI_TEST_MAIN(NULL, NULL)

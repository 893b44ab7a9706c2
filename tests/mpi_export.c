/* mpi_export.c - models as Hugging Face directories: the bytes written equal those read, whichever rank writes. A
 * full disk or a failing rank leaves no partial model. One rank fails in each step in turn; the faults are armed for
 * the n-th passage, so their order is that of the attempts below.
 * NP: 1 2 3
 * DEVICES: cpu queue */
#include "cases.h"
#include "pretrained_fixture.h"
#include <dirent.h>
#include <jansson.h>
#include <sys/mount.h>

static dt_err export_to(fixture *f, const char *dir, dt_st_type dtype, int64_t shard_size, const char *tokenizer)
{
    const dt_export_options opt = {
        .dir = dir, .dtype = dtype, .shard_size = shard_size, .model_config = f->mc.json, .tokenizer = tokenizer};
    const dt_err err = dt_export(&f->comm, f->z, &opt, NULL);
    MPI_Barrier(f->mpi); /* rank 0 removes what there was of a failed one after the vote */
    return err;
}

typedef struct two_files {
    char a[PATH_MAX], b[PATH_MAX];
} two_files;
static bool are_same(const fixture *f, const void *what)
{
    const two_files *t = what;
    return shell("cmp '%s' '%s'", t->a, t->b);
}

static int count_files(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* ---- what comes out ---------------------------------------------------------------------------------------------- */

static bool make_tokenizer(const fixture *f, const void *what)
{
    return shell("cd '%s' && mkdir tok && cd tok && echo '{}' > tokenizer.json && echo a > merges.txt && echo b > "
                 "chat_template.jinja && echo c > other && %s",
                 f->dir, (const char *)what);
}

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

static int asked(void) { return 1; }

/* In the order of the faults that main arms. */
IN_DIR(a_rank_that_fails_alone_fails_the_export_for_all)
{
    static const dt_err expected[] = {DT_ERR_WRITE, DT_ERR_FAULT, DT_ERR_WRITE,
                                      DT_ERR_FAULT, DT_ERR_WRITE, DT_ERR_FAULT};
    fixture *f = *state;
    char out[PATH_MAX];
    in_folder(f->dir, "out", out);
    assert_all(f->mpi, open_model(f, "tests/data/hf/llama_sharded", 3, DT_F32, false) == DT_OK);
    for (int k = 0; k < 6; k++) {
        const dt_err err = export_to(f, out, DT_ST_F32, 20000, "bytes");
        if (err != expected[k]) print_error("attempt %d: error %d\n", k, err);
        assert_all(f->mpi, err == expected[k] && count_files(f->dir) == 0);
        dt_error_clear();
    }
    assert_all(f->mpi, export_to(f, out, DT_ST_F32, 20000, "bytes") == DT_OK);
    assert_all(f->mpi, open_model(f, out, 1, DT_F32, false) == DT_ERR_FAULT); /* load.read */
    dt_error_clear();
    assert_all(f->mpi, open_model(f, out, 1, DT_F32, false) == DT_OK && weights_are(f, DT_ST_F32));
}

/* End of the name of the directory with transformers' form of the same model. */
static const char *form_of(const char *name)
{
    static const char *const OTHER[][2] = {{"gpt_oss_mxfp4", "_decoded"}, {"qwen3_moe_fp8", "_decoded"},
                                           {"llama_nf4", "_decoded"},     {"phi3_nf4", "_decoded"},
                                           {"gpt2_nf4", "_decoded"},      {"gpt2_fp4", "_decoded"},
                                           {"mistral_int8", "_decoded"},  {"gpt2_int8", "_decoded"},
                                           {"internlm2", "_as_llama"},    {"chatglm", "_as_glm"}};
    for (size_t i = 0; i < sizeof OTHER / sizeof OTHER[0]; i++)
        if (strcmp(name, OTHER[i][0]) == 0) return OTHER[i][1];
    return "";
}

IN_DIR(what_was_read_comes_out_as_the_same_bytes)
{
    static const struct {
        const char *name;
        dt_st_type type;
        dt_dtype kept;
    } all[] = {{"gpt2", DT_ST_F32, DT_F32},
               {"llama", DT_ST_F32, DT_F32},
               {"qwen3", DT_ST_F32, DT_F32},
               {"mistral_bf16", DT_ST_BF16, DT_BF16},
               {"mistral_bf16", DT_ST_BF16, DT_F32},
               {"qwen3_f16", DT_ST_F16, DT_F32},
               {"olmo2", DT_ST_F32, DT_F32},
               {"granite", DT_ST_F32, DT_F32},
               {"smollm3", DT_ST_F32, DT_F32},
               {"gemma2", DT_ST_F32, DT_F32},
               {"gemma3_text", DT_ST_F32, DT_F32},
               {"olmo3", DT_ST_F32, DT_F32},
               {"seed_oss", DT_ST_F32, DT_F32},
               {"phi3", DT_ST_F32, DT_F32},
               {"glm4", DT_ST_F32, DT_F32},
               {"glm", DT_ST_F32, DT_F32},
               {"qwen3_moe", DT_ST_F32, DT_F32},
               {"qwen3_moe_many", DT_ST_F32, DT_F32},
               {"mixtral", DT_ST_F32, DT_F32},
               {"deepseek_v3", DT_ST_F32, DT_F32},
               {"deepseek_v3_bf16", DT_ST_BF16, DT_BF16},
               {"deepseek_v3_bf16", DT_ST_BF16, DT_F32},
               {"deepseek_v2", DT_ST_F32, DT_F32},
               {"glm4_moe", DT_ST_F32, DT_F32},
               {"qwen3_5", DT_ST_F32, DT_F32},
               {"qwen3_5_long", DT_ST_F32, DT_F32},
               {"internlm3", DT_ST_F32, DT_F32},
               {"ministral3", DT_ST_F32, DT_F32},
               {"qwen2_moe", DT_ST_F32, DT_F32},
               {"qwen3_5_moe", DT_ST_F32, DT_F32},
               {"qwen3_next", DT_ST_F32, DT_F32},
               {"gpt_oss", DT_ST_F32, DT_F32},
               {"internlm2", DT_ST_F32, DT_F32},
               {"chatglm", DT_ST_F32, DT_F32},
               {"gpt_oss_mxfp4", DT_ST_BF16, DT_BF16},
               {"qwen3_moe_fp8", DT_ST_BF16, DT_BF16},
               {"llama_nf4", DT_ST_BF16, DT_BF16},
               {"phi3_nf4", DT_ST_BF16, DT_BF16},
               {"gpt2_nf4", DT_ST_BF16, DT_BF16},
               {"gpt2_fp4", DT_ST_BF16, DT_BF16},
               {"mistral_int8", DT_ST_BF16, DT_BF16},
               {"gpt2_int8", DT_ST_BF16, DT_BF16}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int stage = 0; stage <= 3; stage++) {
            char from[PATH_MAX];
            two_files t;
            snprintf(from, sizeof from, "tests/data/hf/%s", all[i].name);
            snprintf(t.a, sizeof t.a, "tests/data/hf/%s%s/model.safetensors", all[i].name, form_of(all[i].name));
            /* trained in bf16 the masters are fp32; frozen in bf16 there is nothing else */
            assert_all(f->mpi, open_model(f, from, stage, all[i].kept, stage % 3 == 0) == DT_OK);
            assert_all(f->mpi, export_to(f, f->dir, all[i].type, 0, NULL) == DT_OK);
            assert_all(f->mpi, on_first(f, are_same, (in_folder(f->dir, "model.safetensors", t.b), &t)));
            assert_all(f->mpi, count_files(f->dir) == 2);
        }
}

/* The signal may have reached one rank alone. */
IN_DIR(an_export_ends_for_all_when_one_rank_is_asked_to_stop)
{
    fixture *f = *state;
    char out[PATH_MAX];
    in_folder(f->dir, "out", out);
    dt_phase phase = {.stop_asked = f->comm.rank == f->comm.nranks - 1 ? asked : NULL};
    assert_all(f->mpi, open_model(f, "tests/data/hf/llama_sharded", 3, DT_F32, false) == DT_OK);
    const dt_export_options opt = {.dir = out, .dtype = DT_ST_F32, .model_config = f->mc.json, .tokenizer = "bytes"};
    const dt_err err = dt_export(&f->comm, f->z, &opt, &phase);
    MPI_Barrier(f->mpi); /* rank 0 removes what there was after the vote */
    assert_all(f->mpi, err == DT_ERR_STOP && count_files(f->dir) == 0);
    assert_all(f->mpi, dt_comm_failed_together(&f->comm));
    dt_error_clear();
    assert_all(f->mpi, dt_export(&f->comm, f->z, &opt, NULL) == DT_OK);
}

IN_DIR(the_configuration_says_what_the_files_are)
{
    fixture *f = *state;
    char path[PATH_MAX];
    assert_all(f->mpi, open_model(f, "tests/data/hf/qwen3", 3, DT_F32, true) == DT_OK);
    assert_all(f->mpi, export_to(f, f->dir, DT_ST_BF16, 0, NULL) == DT_OK);
    json_t *found = json_load_file(in_folder(f->dir, "config.json", path), JSON_REJECT_DUPLICATES, NULL),
           *want = json_load_file("tests/data/hf/qwen3/config.json", 0, NULL);
    json_object_set_new(want, "dtype", json_string("bfloat16"));
    json_object_set_new(want, "torch_dtype", json_string("bfloat16"));
    const bool same = json_equal(found, want);
    json_decref(found);
    json_decref(want);
    assert_all(f->mpi, same);
}

IN_DIR(shards_are_as_large_as_allowed_and_replace_what_was_there)
{
    static const int64_t sizes[] = {1, 4000, 20000, INT64_MAX, 9000};
    static const int n_files[] = {1, 0, 0, 1, 0};
    fixture *f = *state;
    for (int i = 0; i < 5; i++) {
        char text[PATH_MAX];
        assert_all(f->mpi, open_model(f, "tests/data/hf/llama_sharded", 3, DT_F32, true) == DT_OK);
        int n_tensors = 0;
        for (int u = 0; u < f->n_units; u++) n_tensors += f->units[u].n_tensors;
        assert_all(f->mpi, export_to(f, f->dir, DT_ST_F32, sizes[i], NULL) == DT_OK);
        const int n = count_files(f->dir) - 2; /* config.json; the index, or none and one file */
        assert_all(f->mpi, i != 0 || n == n_tensors);
        assert_all(f->mpi, n_files[i] == 0 ? n > 1 && n < n_tensors : i == 0 || n == 0);
        assert_all(f->mpi, exists_in(f->dir, "model.safetensors.index.json") == (n > 0) &&
                               exists_in(f->dir, "model.safetensors") == (n == 0));
        assert_all(f->mpi,
                   open_model(f, strcpy(text, f->dir), i % 4, DT_F32, false) == DT_OK && weights_are(f, DT_ST_F32));
    }
}

IN_DIR(the_tokenizers_files_go_along)
{
    fixture *f = *state;
    char out[PATH_MAX], tok[PATH_MAX], file[PATH_MAX];
    assert_all(f->mpi, open_model(f, "tests/data/hf/gpt2", 2, DT_F32, false) == DT_OK);
    assert_all(f->mpi, on_first(f, make_tokenizer, "echo '{\"top_k\": 3}' > generation_config.json"));
    assert_all(f->mpi,
               export_to(f, in_folder(f->dir, "out", out), DT_ST_F32, 0, in_folder(f->dir, "tok", tok)) == DT_OK);
    assert_all(f->mpi, count_files(out) == 6 && exists_in(f->dir, "out/tokenizer.json") &&
                           exists_in(f->dir, "out/chat_template.jinja") && !exists_in(f->dir, "out/other"));
    assert_all(f->mpi, export_to(f, out, DT_ST_F32, 0, in_folder(f->dir, "tok/tokenizer.json", file)) == DT_OK &&
                           count_files(out) == 6);
    assert_all(f->mpi, open_model(f, out, 0, DT_F32, true) == DT_OK && f->from.generation.top_k == 3 &&
                           strcmp(f->from.tokenizer, out) == 0);
    /* another tokenizer takes the place of all its files */
    assert_all(f->mpi, export_to(f, out, DT_ST_F32, 0, "bytes") == DT_OK && count_files(out) == 4);
    assert_all(f->mpi, !exists_in(f->dir, "out/merges.txt") && exists_in(f->dir, "out/tokenizer_config.json"));
    assert_all(f->mpi, export_to(f, out, DT_ST_F32, 0, in_folder(f->dir, "nowhere", file)) == DT_ERR_DATA &&
                           count_files(out) == 4);
    dt_error_clear();
    assert_all(f->mpi, open_model(f, out, 0, DT_F32, true) == DT_OK && weights_are(f, DT_ST_F32));
}

IN_DIR(the_code_of_a_tokenizer_is_not_named)
{
    fixture *f = *state;
    char out[PATH_MAX], tok[PATH_MAX], path[PATH_MAX], *text = NULL;
    size_t n;
    assert_all(f->mpi, open_model(f, "tests/data/hf/gpt2", 1, DT_F32, true) == DT_OK);
    assert_all(f->mpi, on_first(f, make_tokenizer,
                                "echo '{\"x\": [1], \"auto_map\": {\"AutoTokenizer\": [\"a.A\", null]}}' > "
                                "tokenizer_config.json"));
    assert_all(f->mpi,
               export_to(f, in_folder(f->dir, "out", out), DT_ST_F32, 0, in_folder(f->dir, "tok", tok)) == DT_OK);
    const bool ok = dt_read_file(in_folder(f->dir, "out/tokenizer_config.json", path), 1 << 10, &text, &n) == DT_OK &&
                    strcmp(text, "{\"x\": [1], \"auto_map\": {}}\n") == 0;
    free(text);
    assert_all(f->mpi, ok);
}

IN_DIR(the_tokenizer_of_bytes_is_written_for_others)
{
    fixture *f = *state;
    char path[PATH_MAX];
    assert_all(f->mpi, open_model(f, "tests/data/hf/gpt2", 0, DT_F32, false) == DT_OK &&
                           export_to(f, f->dir, DT_ST_F32, 0, "bytes") == DT_OK);
    json_t *root = json_load_file(in_folder(f->dir, "tokenizer.json", path), JSON_REJECT_DUPLICATES, NULL),
           *model = json_object_get(root, "model");
    const json_t *vocab = json_object_get(model, "vocab"),
                 *end = json_array_get(json_object_get(root, "added_tokens"), 0);
    bool seen[256] = {false},
         ok = json_object_size(vocab) == 256 && json_array_size(json_object_get(model, "merges")) == 0;
    const char *token;
    json_t *id;
    json_object_foreach((json_t *)vocab, token, id) seen[json_integer_value(id) & 255] = true;
    for (int i = 0; i < 256; i++) ok = ok && seen[i];
    ok = ok && json_integer_value(json_object_get(vocab, "a")) == 'a' &&
         json_integer_value(json_object_get(vocab, "\xc4\xa0")) == ' ' &&
         json_integer_value(json_object_get(vocab, "\xc4\x8a")) == '\n' &&
         json_integer_value(json_object_get(vocab, "\xc3\xbf")) == 0xff;
    ok = ok && json_integer_value(json_object_get(end, "id")) == 256 &&
         strcmp(json_string_value(json_object_get(end, "content")), "<|endoftext|>") == 0;
    json_decref(root);
    assert_all(f->mpi, ok);
}

IN_DIR(a_number_too_large_for_the_type_is_refused)
{
    fixture *f = *state;
    const float large = 65520;
    assert_all(f->mpi, open_model(f, "tests/data/hf/gpt2", 3, DT_F32, false) == DT_OK);
    const dt_slice *p = dt_zero_slices(f->z);
    for (int k = 0; k < dt_zero_n_slices(f->z); k++)
        if (strcmp(dt_zero_tensor(f->z, &p[k])->name, "transformer.ln_f.bias") == 0 && p[k].n > 0)
            dt_zero_state_write(f->z, DT_STATE_PARAM, &p[k], 0, 1, &large);
    assert_all(f->mpi, dt_zero_state_written(f->z) == DT_OK);
    assert_all(f->mpi, export_to(f, f->dir, DT_ST_F16, 0, NULL) == DT_ERR_DATA && count_files(f->dir) == 0);
    assert_all(f->mpi, !dt_comm_prints_error(&f->comm) || strstr(dt_error_message(), "`transformer.ln_f.bias`"));
    dt_error_clear();
    assert_all(f->mpi, export_to(f, f->dir, DT_ST_BF16, 0, NULL) == DT_OK);
}

IN_DIR(a_full_disk_leaves_what_was_there)
{
    fixture *f = *state;
    char out[PATH_MAX], balloon[PATH_MAX];
    int mounted = 0;
    if (f->comm.rank == 0) mounted = mount("tmpfs", f->dir, "tmpfs", 0, "size=400k") == 0 ? 1 : -errno;
    MPI_Bcast(&mounted, 1, MPI_INT, 0, f->mpi);
    skip_all_if(mounted != 1, "mounting a small tmpfs is not permitted here");
    in_folder(f->dir, "out", out);
    in_folder(f->dir, "balloon", balloon);
    bool ok = open_model(f, "tests/data/hf/llama", 3, DT_F32, true) == DT_OK &&
              export_to(f, out, DT_ST_F32, 0, "bytes") == DT_OK;
    int n_full = 0;
    for (int64_t left = 0; ok && left <= 100000; left += 4096) {
        if (f->comm.rank == 0) {
            const int fd = open(balloon, O_WRONLY | O_CREAT | O_TRUNC, 0666);
            int64_t nbytes = 400 << 10;
            while (nbytes > 0 && fallocate(fd, 0, 0, nbytes) != 0) nbytes -= 4096; /* all that is left */
            ok = fd >= 0 && ftruncate(fd, nbytes > left ? nbytes - left : 0) == 0;
            close(fd);
        }
        MPI_Barrier(f->mpi);
        const dt_err err = export_to(f, out, DT_ST_F32, 20000, "bytes"); /* other files than those that are there */
        n_full += err != DT_OK;
        ok = ok && (err == DT_OK || err == DT_ERR_WRITE) &&
             (err == DT_OK) == exists_in(f->dir, "out/model.safetensors.index.json") &&
             count_files(out) == (err == DT_OK ? 7 : 4);
        if (!ok)
            print_error("with %lld bytes left: error %d, %d files: %s\n", (long long)left, err, count_files(out),
                        dt_error_message());
        int all_ok = ok;
        MPI_Allreduce(MPI_IN_PLACE, &all_ok, 1, MPI_INT, MPI_MIN, f->mpi);
        ok = all_ok;
        dt_error_clear();
        if (err == DT_OK) break;
    }
    ok = ok && open_model(f, out, 2, DT_F32, false) == DT_OK && weights_are(f, DT_ST_F32);
    close_model(f);
    MPI_Barrier(f->mpi);
    if (f->comm.rank == 0) ok = umount2(f->dir, MNT_DETACH) == 0 && ok;
    assert_all(f->mpi, ok && n_full >= 3);
}

IN_DIR(places_that_cannot_be_written_are_write_errors)
{
    fixture *f = *state;
    char path[PATH_MAX];
    assert_all(f->mpi, open_model(f, "tests/data/hf/gpt2", 0, DT_F32, false) == DT_OK);
    assert_all(f->mpi, f->comm.rank != 0 || dt_write_file_atomic(in_folder(f->dir, "file", path), "x", 1) == DT_OK);
    assert_all_fail(f->mpi, export_to(f, in_folder(f->dir, "file/out", path), DT_ST_F32, 0, NULL), DT_ERR_WRITE, "");
    assert_all_fail(f->mpi, export_to(f, in_folder(f->dir, "file", path), DT_ST_F32, 0, NULL), DT_ERR_WRITE, "");
}

/* How many tensors a rank reads a part of when it loads the model. */
static int tensors_of(int rank, int nranks)
{
    fixture f = {0};
    int n = 0;
    if (dt_pretrained_describe(&f.from, "tests/data/hf/llama_sharded", DT_MODEL_USUAL) != DT_OK ||
        dt_model_config_parse(&f.mc, "", f.from.model_config) != DT_OK ||
        dt_model_make_units(&f.mc, &f.units, &f.n_units) != DT_OK)
        abort();
    for (int u = 0; u < f.n_units; u++) {
        const int64_t begin = rank * dt_shards_of(f.units[u].flat_len[DT_TRAINED], nranks, 1, DT_SHARD_ALIGN).shard_len,
                      end = begin + dt_shards_of(f.units[u].flat_len[DT_TRAINED], nranks, 1, DT_SHARD_ALIGN).shard_len;
        for (int t = 0; t < f.units[u].n_tensors; t++)
            n += f.units[u].tensors[t].offset < end &&
                 f.units[u].tensors[t].offset + f.units[u].tensors[t].n_elems > begin;
    }
    close_model(&f);
    return n;
}

int main(int argc, char **argv)
{
    char list[400];
    int last;
    mpi_test_begin(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &last);
    last--;
    snprintf(list, sizeof list,
             "export.create:0:1:nospace,export.create:%d:2:error,export.write:%d:1:nospace,export.write:%d:2:error,"
             "export.publish:0:1:nospace,export.publish:%d:2:error,load.read:%d:%d:error",
             last, last, last, last, last, tensors_of(last, last + 1) + 1);
    setenv("DTRAIN_FAULT", list, 1);
    return mpi_test_end(run_listed(NULL, open_fixture, close_fixture));
}

/* test_safetensors.c - files of tensors: valid files are read, and invalid ones are refused with an error that names
 * the fault. Written files equal those of the safetensors library. */

#include "folder.h"
#include "dtrain/io/safetensors.h"
#include <sys/stat.h>

/* A file of a header and n bytes 0, 1, 2, ... of data. */
static void write_tensors(const char *name, const char *header, size_t n)
{
    const size_t len = strlen(header);
    char *all = calloc(1, 8 + len + n + 1);
    for (int i = 0; i < 8; i++) all[i] = (char)(len >> 8 * i);
    memcpy(all + 8, header, len);
    for (size_t i = 0; i < n; i++) all[8 + len + i] = (char)i;
    assert_int_equal(dt_write_file_sync(in_folder(name), all, 8 + len + n), DT_OK);
    free(all);
}

static void assert_refused(const char *path, const char *word)
{
    dt_safetensors s = {0};
    dt_error_clear();
    const dt_err err = dt_safetensors_open(&s, path);
    dt_safetensors_close(&s);
    if (err != DT_ERR_DATA || !strstr(dt_error_message(), word))
        fail_msg("expected '%s', found error %d: %s", word, err, dt_error_message());
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

TEST(every_half_number_survives_the_way_through_float)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        const uint16_t in = (uint16_t)h;
        float f;
        uint16_t out;
        assert_int_equal(dt_st_convert(&in, DT_ST_F16, &f, DT_ST_F32, 1), 0);
        assert_int_equal(dt_st_convert(&f, DT_ST_F32, &out, DT_ST_F16, 1), 0);
        assert_int_equal(in, out);
    }
}

static float half_value(uint16_t h)
{
    float f;
    dt_st_convert(&h, DT_ST_F16, &f, DT_ST_F32, 1);
    return f;
}

/* Between two neighbours: the nearer one, and the even one from the middle. */
TEST(floats_round_to_the_nearest_half_number)
{
    for (uint16_t h = 0; h < 0x7bff; h++) {
        const float lo = half_value(h), hi = half_value((uint16_t)(h + 1)), middle = (lo + hi) / 2; /* exact: 12 bits */
        const float in[3] = {nextafterf(middle, lo), middle, nextafterf(middle, hi)};
        uint16_t out[3];
        assert_int_equal(dt_st_convert(in, DT_ST_F32, out, DT_ST_F16, 3), 0);
        assert_int_equal(out[0], h);
        assert_int_equal(out[1], h % 2 ? h + 1 : h);
        assert_int_equal(out[2], h + 1);
    }
    const float far[6] = {65519.996f, 65520, 1e30f, -65520, INFINITY, NAN};
    uint16_t out[6];
    assert_int_equal(dt_st_convert(far, DT_ST_F32, out, DT_ST_F16, 6), 3);
    assert_int_equal(out[0], 0x7bff);
    assert_int_equal(out[1], 0x7c00);
    assert_int_equal(out[3], 0xfc00);
    assert_int_equal(out[4], 0x7c00);
    assert_true(isnan(half_value(out[5])));
    assert_int_equal(dt_st_convert(&(float){3.4e38f}, DT_ST_F32, out, DT_ST_BF16, 1), 1);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

TEST_WITH(a_good_file_is_read, make_folder, remove_folder)
{
    dt_safetensors s = {0};
    float x[4];
    uint16_t h[2];
    write_tensors(
        "a.safetensors",
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[4,20]}"
        ",\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[4,4]},\"one\":{\"dtype\":\"BF16\","
        "\"shape\":[],\"data_offsets\":[20,22]},\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},"
        "\"flags\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[22,25]}}   ",
        25);
    assert_int_equal(dt_safetensors_open(&s, in_folder("a.safetensors")), DT_OK);
    assert_int_equal(s.n_tensors, 5);
    const dt_st_tensor *a = dt_safetensors_find(&s, "a"), *b = dt_safetensors_find(&s, "b"),
                       *one = dt_safetensors_find(&s, "one");
    assert_null(dt_safetensors_find(&s, "c"));
    assert_true(a->type == DT_ST_F16 && a->n_dims == 1 && a->n_elems == 2 && b->n_dims == 2 && one->n_dims == 0 &&
                one->n_elems == 1);
    assert_int_equal(dt_safetensors_read(&s, b, 1, 3, DT_F32, x), DT_OK);
    assert_memory_equal(x, "\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13", 12);
    assert_int_equal(dt_safetensors_read(&s, one, 0, 1, DT_BF16, h), DT_OK);
    assert_memory_equal(h, "\x14\x15", 2);
    assert_int_equal(dt_safetensors_read(&s, b, 2, 3, DT_F32, x), DT_ERR_ARG);
    assert_int_equal(dt_safetensors_read(&s, dt_safetensors_find(&s, "flags"), 0, 1, DT_F32, x), DT_ERR_DATA);
    assert_int_equal(dt_safetensors_read(&s, dt_safetensors_find(&s, "none"), 0, 0, DT_F32, x), DT_OK);
    assert_int_equal(truncate(in_folder("a.safetensors"), 200), 0);
    assert_int_equal(dt_safetensors_read(&s, b, 0, 4, DT_F32, x), DT_ERR_DATA);
    dt_safetensors_close(&s);
    dt_safetensors_close(&s);
}

#define T(name, dtype, shape, offsets)                                                                                 \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST_WITH(a_bad_header_is_refused_by_name, make_folder, remove_folder)
{
    static const struct {
        const char *header;
        size_t n;
        const char *word;
    } all[] = {
        {"{" T("a", "F32", "[2]", "[0,8]") "}", 7,
         "`a`: its data ends at byte 8, but the file has 7 bytes: it was cut short"},
        {"{" T("a", "F32", "[2]", "[0,8]") "}", 9, "found 1 bytes after the last tensor"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[4,8]") "}", 8,
         "`b`: its data begins at byte 4, but the previous tensor ends at 8: they overlap"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[0,8]") "}", 8, "they overlap"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[9,13]") "}", 13,
         "`b`: its data begins at byte 9, but the previous tensor ends at 8: there is a gap"},
        {"{" T("a", "F32", "[2]", "[8,16]") "}", 16, "there is a gap"},
        {"{" T("a", "F32", "[2]", "[0,12]") "}", 12,
         "`a`: data_offsets: expected begin and end, 8 bytes apart for F32 and this shape, found [0,12]"},
        {"{" T("a", "F32", "[2]", "[8,0]") "}", 8, "`a`: data_offsets"},
        {"{" T("a", "F32", "[2]", "[-8,0]") "}", 8, "`a`: data_offsets"},
        {"{" T("a", "F32", "[2]", "[0.0,8.0]") "}", 8, "`a`: data_offsets"},
        {"{" T("a", "F32", "[2]", "[0,8,8]") "}", 8, "`a`: data_offsets"},
        {"{" T("a", "F32", "[-2]", "[0,8]") "}", 8, "`a`: shape: expected sizes of at least 0, found [-2]"},
        {"{" T("a", "F32", "[2.0]", "[0,8]") "}", 8, "`a`: shape"},
        {"{" T("a", "F32", "2", "[0,8]") "}", 8, "`a`: shape"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "`a`: shape: expected a list of at most 8 sizes"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "`a`: shape"},
        {"{" T("a", "F32", "[3037000500,3037000500,0]", "[0,0]") "}", 0, "`a`: shape"},
        {"{" T("a", "F32", "[9223372036854775807]", "[0,8]") "}", 8, "`a`: shape"},
        {"{" T("a", "F4", "[3]", "[0,1]") "}", 1, "`a`: shape: expected a whole number of bytes"},
        {"{" T("a", "F33", "[2]", "[0,8]") "}", 8, "`a`: dtype: expected a data type of the format"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "`a`: dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "`a`: shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "`a`: data_offsets"},
        {"{\"a\":7}", 0, "`a`: entry: expected an object"},
        {"{\"__metadata__\":7}", 0, "__metadata__"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, "duplicate"},
        {"{\"a\\u0000b\":7}", 0, "not valid JSON"},
        {"{\"\xff\":7}", 0, "not valid JSON"},
        {"[1,2]", 0, "expected an object"},
        {"{}x", 0, "not valid JSON"},
        {"{\"a\":", 0, "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        write_tensors("model.safetensors", all[i].header, all[i].n);
        assert_refused(in_folder("model.safetensors"), all[i].word);
        assert_refused(folder, "model.safetensors");
    }
}

TEST_WITH(a_bad_length_is_refused, make_folder, remove_folder)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *word;
    } all[] = {
        {"", 0, "the file is empty"},
        {"\2\0\0\0\0\0\0", 7, "it has only 7 bytes"},
        {"\2\0\0\0\0\0\0\0{", 9, "was cut short: expected a header of 2 bytes"},
        {"\0\0\0\0\0\0\0\0{}", 10, "header of 2 to 100000000 bytes, found 0"},
        {"\1\341\365\5\0\0\0\0{}", 10, "found 100000001"},
        {"\377\377\377\377\377\377\377\377{}", 10, "found 18446744073709551615"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_int_equal(dt_write_file_sync(in_folder("x.safetensors"), all[i].bytes, all[i].n), DT_OK);
        assert_refused(in_folder("x.safetensors"), all[i].word);
    }
    assert_refused(in_folder("nowhere.safetensors"), "nowhere.safetensors");
}

/* ---- several files ----------------------------------------------------------------------------------------------- */

TEST_WITH(an_index_is_checked_against_its_files, make_folder, remove_folder)
{
    static const struct {
        const char *index, *word;
    } all[] = {
        {"{\"weight_map\":{\"a\":\"1\",\"b\":\"2\"}}", NULL},
        {"{\"weight_map\":{\"a\":\"1\",\"b\":\"1\"}}", "1: tensor `b` is missing"},
        {"{\"weight_map\":{\"a\":\"1\",\"b\":\"2\",\"c\":\"2\"}}", "2: tensor `c` is missing"},
        {"{\"weight_map\":{\"a\":\"1\",\"c\":\"2\"}}", "2: tensor `b` is not in"},
        {"{\"weight_map\":{\"a\":\"2\",\"b\":\"1\"}}", "1: tensor `a` is in this file, but belongs to 2"},
        {"{\"weight_map\":{\"a\":\"1\",\"b\":\"2\",\"c\":\"3\"}}", "3: tensor `a` is in this file, but belongs to 1"},
        {"{\"weight_map\":{\"a\":\"1\",\"b\":\"4\"}}", "4: cannot be opened"},
        {"{\"weight_map\":{\"a\":\"../x\",\"b\":\"2\"}}",
         "`a`: expected the name of a file in the same directory, found ../x"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\",\"b\":\"2\"}}",
         "`a`: expected the name of a file in the same directory"},
        {"{\"weight_map\":{\"a\":\"..\",\"b\":\"2\"}}", "`a`: expected the name"},
        {"{\"weight_map\":{\"a\":\"\",\"b\":\"2\"}}", "`a`: expected the name"},
        {"{\"weight_map\":{\"a\":1,\"b\":\"2\"}}", "`a`: expected the name"},
        {"{\"weight_map\":{\"a\":\"sub\",\"b\":\"2\"}}", "sub: expected a regular file"},
        {"{\"weight_map\":{}}", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{}", "weight_map"},
        {"[]", "expected an object"},
        {"{\"weight_map\":{\"a\":\"1\",\"a\":\"2\"}}", "duplicate"},
        {"{", "not valid JSON"},
    };
    write_tensors("1", "{" T("a", "F32", "[1]", "[0,4]") "}", 4);
    write_tensors("2", "{" T("b", "BF16", "[1]", "[0,2]") "}", 2);
    write_tensors("3", "{" T("a", "F32", "[1]", "[0,4]") "," T("c", "F32", "[1]", "[4,8]") "}", 8);
    assert_int_equal(dt_make_dirs(in_folder("sub")), DT_OK);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        dt_safetensors s = {0};
        write_file("model.safetensors.index.json", all[i].index);
        if (all[i].word) {
            assert_refused(folder, all[i].word);
            continue;
        }
        assert_int_equal(dt_safetensors_open(&s, folder), DT_OK);
        assert_true(s.n_files == 2 && s.n_tensors == 2 && dt_safetensors_find(&s, "b")->file == 1);
        dt_safetensors_close(&s);
    }
}

TEST(the_first_value_that_is_not_finite_is_found)
{
    enum { N = 9000 };
    static const struct {
        dt_st_type type;
        uint32_t finite, not_finite[4];
    } all[] = {
        {DT_ST_F32, 0xff7fffff, {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001}},
        {DT_ST_BF16, 0xff7f, {0x7f80, 0xff80, 0x7fc0, 0xff81}},
        {DT_ST_F16, 0xfbff, {0x7c00, 0xfc00, 0x7e00, 0xfc01}},
    };
    static const int at[] = {0, 1, 2, 3, 4095, 4096, 8191, N - 2, N - 1};
    static uint32_t words[N];
    uint16_t *halves = (uint16_t *)words;
    for (size_t t = 0; t < sizeof all / sizeof all[0]; t++)
        for (size_t k = 0; k < 4 * sizeof at / sizeof at[0]; k++) {
            const bool wide = all[t].type == DT_ST_F32;
            const int i = at[k / 4];
            for (int e = 0; e < N; e++) wide ? (words[e] = all[t].finite) : (halves[e] = (uint16_t)all[t].finite);
            assert_int_equal(dt_st_first_nonfinite(words, all[t].type, N), -1);
            wide ? (words[i] = all[t].not_finite[k % 4]) : (halves[i] = (uint16_t)all[t].not_finite[k % 4]);
            assert_int_equal(dt_st_first_nonfinite(words, all[t].type, N), i);
            assert_int_equal(dt_st_first_nonfinite(words, all[t].type, i), -1);
            assert_int_equal(dt_st_is_nan(words, all[t].type, i), k % 4 >= 2);
        }
    memset(words, 0xff, sizeof words);
    assert_int_equal(dt_st_first_nonfinite(words, DT_ST_I8, N), -1); /* codes */
}

TEST_WITH(a_file_that_was_not_fetched_is_named, make_folder, remove_folder)
{
    static const char *const all[][2] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n",
         "found a Git LFS pointer instead of the file; run `git lfs pull`"},
        {"<!doctype html>\n<html><body>404</body></html>\n", "found a web page instead of the file"},
        {"\n<html lang=en>", "found a web page instead of the file"},
        {"", "the file is empty"},
        {"version 1", "expected a safetensors header of 2 to"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        write_file("model.safetensors", all[i][0]);
        assert_refused(folder, all[i][1]);
        write_file("model.safetensors.index.json", i == 4 ? "x" : all[i][0]);
        unlink(in_folder("model.safetensors"));
        assert_refused(folder, i == 4 ? "not valid JSON" : all[i][1]);
        unlink(in_folder("model.safetensors.index.json"));
    }
}

TEST_WITH(pickled_weights_are_named, make_folder, remove_folder)
{
    assert_refused(folder, "the weights are missing: expected model.safetensors");
    write_file("pytorch_model.bin", "");
    assert_refused(folder, "pytorch_model.bin: this weight format is not supported");
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

TEST_WITH(the_layout_is_the_librarys, make_folder, remove_folder)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"a\\\"\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]},"
        "\"b\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[6,14]}}";
    const int64_t four[] = {2, 2}, three[] = {3};
    const dt_st_entry e[] = {{"b", 2, four, false}, {"a\"", 1, three, false}};
    dt_st_layout l;
    dt_safetensors s = {0};
    assert_int_equal(dt_st_layout_make(&l, "model", e, 2, DT_ST_F16, DT_ST_SHARD_SIZE), DT_OK);
    assert_true(l.n_files == 1 && !l.index && l.header_len[0] % 8 == 0 && l.size[0] == (int64_t)l.header_len[0] + 14);
    assert_memory_equal(l.headers[0] + 8, header, sizeof header - 1);
    for (size_t i = 8 + sizeof header - 1; i < l.header_len[0]; i++) assert_int_equal(l.headers[0][i], ' ');
    assert_true(l.offset[1] == (int64_t)l.header_len[0] && l.offset[0] == l.offset[1] + 6);
    assert_int_equal(dt_st_layout_create(&l, folder), DT_OK);
    assert_int_equal(dt_st_layout_sync(&l, folder, 0), DT_OK);
    assert_refused(folder, "the weights are missing"); /* not before it is published */
    assert_int_equal(dt_st_layout_publish(&l, folder), DT_OK);
    assert_int_equal(dt_safetensors_open(&s, folder), DT_OK);
    assert_int_equal(dt_safetensors_find(&s, "a\"")->offset, l.offset[1]);
    dt_safetensors_close(&s);
    dt_st_layout_free(&l);
}

TEST_WITH(files_are_filled_in_order, make_folder, remove_folder)
{
    const int64_t ten[] = {10}, hundred[] = {100};
    const dt_st_entry e[] = {{"c", 1, ten, false}, {"b", 1, ten, true}, {"a", 1, hundred, false}, {"d", 1, ten, false}};
    const int want[3][4] = {{0, 0, 1, 2}, {0, 1, 2, 3}, {0, 0, 0, 0}};
    const int64_t sizes[] = {80, 79, 520};
    for (int i = 0; i < 3; i++) {
        dt_st_layout l;
        dt_safetensors s = {0};
        assert_int_equal(dt_st_layout_make(&l, "model", e, 4, DT_ST_F32, sizes[i]), DT_OK);
        assert_memory_equal(l.file, want[i], sizeof want[i]);
        assert_string_equal(l.names[0], i == 0   ? "model-00001-of-00003.safetensors"
                                        : i == 1 ? "model-00001-of-00004.safetensors"
                                                 : "model.safetensors");
        assert_int_equal(dt_st_layout_create(&l, folder), DT_OK);
        assert_int_equal(dt_st_layout_publish(&l, folder), DT_OK);
        assert_int_equal(dt_safetensors_open(&s, folder), DT_OK);
        assert_true(s.n_files == l.n_files && s.n_tensors == 4);
        if (l.index) assert_non_null(strstr(l.index, "\"total_size\": 520"));
        dt_safetensors_close(&s);
        dt_st_layout_discard(&l, folder);
        dt_st_layout_free(&l);
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }

/* fuzz_rows.c - any bytes as rows of recommendation data, as an index, as an item file and as templates: a dataset that
 * verifies, or an error with a reason. The first two bytes choose how. */
#include "make_twice.h"

#define FILES "tests/data/rec/"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What `file` is is chosen, too; the other files are whole ones. */
static dt_make_options options(unsigned how, unsigned more, const char *file, const char **inputs)
{
    static const char *const recipes[] = {"sft", "rl", "eval", "sft"};
    static const char *const tasks[] = {NULL, "sids-sid,sids-title:2", "titles-title,titles-sid:1", "description-sid"};
    const bool index = !(more & 1), items = index && !(more & 2);
    dt_make_options o = {.inputs = inputs,
                         .n_inputs = 1,
                         .kind = DT_ANY_KIND,
                         .format = DT_INPUT_MINIONEREC,
                         .documents = DT_DOCUMENTS_FILES,
                         .tokenizer = FILES "qwen2",
                         .chat_template = "auto",
                         .mask = DT_MASK_AUTO,
                         .prefer = DT_PREFER_BETTER,
                         .truncate = more & 4 ? DT_TRUNCATE_START : DT_TRUNCATE_AUTO,
                         .max_length = more & 8 ? 50 : 0,
                         .append_eos = more & 16,
                         .skip_bad = more & 32,
                         .rec = {.recipe = recipes[how / 4 % 4],
                                 .tasks = tasks[how / 16 % 4],
                                 .index = index ? FILES "x.index.json" : NULL,
                                 .items = items ? FILES "x.item.json" : NULL,
                                 .category = more & 64 ? "Books" : NULL,
                                 .longest = more & 128}};
    inputs[0] = how % 4 == 0 ? file : FILES "x.csv";
    if (how % 4 == 1) o.rec.index = file;
    if (how % 4 == 2) o.rec.items = file;
    if (how % 4 == 3) o.chat_template = file;
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    char file[64];
    snprintf(file, sizeof file, "/tmp/dtrain-fuzz-%d.json", (int)getpid()); /* templates are known by their ending */
    FILE *f = fopen(file, "wb");
    must(f && fwrite(data + 2, 1, size - 2, f) == size - 2 && fclose(f) == 0);
    const char *inputs[1];
    dt_make_options o = options(data[0], data[1], file, inputs);
    make_and_check(&o, size % 8 == 0);
    unlink(file);
    return 0;
}

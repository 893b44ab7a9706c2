/* splitter_read.c - reads the pre-tokenizer of a tokenizer.json, and lists known split expressions. */
#include "splitter.h"
#include "dtrain/text/utf8.h"

#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define CASED(forms)                                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" forms "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" forms

static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Expressions with known behaviour in any context. at_line: between "x\n" (x is no space) and a letter. at_space:
 * before " a" after a letter. An expression either always splits there, or has no match that spans the position. */
static const struct {
    const char *pattern;
    dt_split_there line, space;
} known[] = {
    {gpt2, DT_THERE_SPLIT, DT_THERE_SPLIT},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", DT_THERE_SPLIT, DT_THERE_SPLIT},
    /* Llama 3 */
    {DT_SPLIT_WORDS("\\p{L}", "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*") DT_SPLIT_SPACE, DT_THERE_SPLIT,
     DT_THERE_SPLIT},
    /* Qwen 2, 3 */
    {DT_SPLIT_QWEN2, DT_THERE_SPLIT, DT_THERE_SPLIT},
    {DT_SPLIT_QWEN3_5, DT_THERE_SPLIT, DT_THERE_SPLIT},
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
     DT_THERE_SPLIT, DT_THERE_SPLIT},
    {CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" DT_SPLIT_SPACE, DT_THERE_SPLIT,
     DT_THERE_SPLIT}, /* Mistral's Tekken */
    {CASED(SHORT_FORMS) "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" DT_SPLIT_SPACE, DT_THERE_SPLIT, DT_THERE_SPLIT},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\\r\\n]*" DT_SPLIT_SPACE,
     DT_THERE_SPLIT, DT_THERE_SPLIT}, /* DeepSeek V3 */
    {"[\\r\\n]", DT_THERE_SPLIT, DT_THERE_LOCAL},
    {"\\s?\\p{L}+", DT_THERE_UNKNOWN, DT_THERE_SPLIT},
    {"\\p{N}{1,3}", DT_THERE_LOCAL, DT_THERE_LOCAL},
    {"\\p{N}", DT_THERE_LOCAL, DT_THERE_LOCAL},
    {"\\p{N}+", DT_THERE_LOCAL, DT_THERE_LOCAL},
    {"\\d", DT_THERE_LOCAL, DT_THERE_LOCAL},
    {"[一-龥぀-ゟ゠-ヿ]+", DT_THERE_LOCAL, DT_THERE_LOCAL},
    {"[一-龥ࠀ-一가-퟿]+", DT_THERE_LOCAL, DT_THERE_LOCAL},
};

/* Some files contain a newline where others contain its escape. */
static void split_known(const char *raw, dt_split_step *step)
{
    char pattern[512];
    size_t n = 0;
    for (; *raw && n + 2 < sizeof pattern; raw++) {
        const bool ends_line = *raw == '\n' || *raw == '\r';
        if (ends_line) pattern[n++] = '\\';
        pattern[n++] = *raw == '\n' ? 'n' : *raw == '\r' ? 'r' : *raw;
    }
    pattern[n] = 0;
    if (*raw) return;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(pattern, known[i].pattern) == 0) step->at_line = known[i].line, step->at_space = known[i].space;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static dt_err new_step(dt_splitter *s, const dt_spec *spec, dt_split_step **step)
{
    if (s->n_steps == DT_SPLIT_MAX) return dt_spec_bad(spec, NULL, "at most 32 pre-tokenizers");
    *step = &s->step[s->n_steps++];
    **step = (dt_split_step){0};
    return DT_OK;
}

/* Add a split by a built-in expression. */
static dt_err add_pattern(dt_splitter *s, const dt_spec *spec, const char *pattern, dt_regex_syntax syntax,
                          dt_split_behavior behavior, bool invert, dt_split_step **out)
{
    DT_TRY(new_step(s, spec, out));
    (*out)->behavior = behavior;
    (*out)->invert = invert;
    return dt_regex_compile(&(*out)->pattern, pattern, strlen(pattern), syntax);
}

static dt_err read_behavior(const dt_spec *spec, dt_split_behavior *behavior)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    DT_TRY(dt_spec_string(spec, "behavior", &name));
    if (!name) return DT_OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) return *behavior = (dt_split_behavior)i, DT_OK;
    return dt_spec_bad(spec, "behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

static dt_err read_split(dt_splitter *s, const dt_spec *spec)
{
    dt_split_step *step = NULL;
    const char *text;
    bool literal;
    dt_spec behavior;
    DT_TRY(dt_spec_only(spec, "type pattern behavior invert"));
    DT_TRY(dt_spec_need(spec, "behavior", JSON_STRING, &behavior));
    DT_TRY(new_step(s, spec, &step));
    DT_TRY(read_behavior(spec, &step->behavior));
    DT_TRY(dt_spec_bool(spec, "invert", &step->invert));
    DT_TRY(dt_pattern_read(spec, &step->pattern, &text, &literal));
    const bool plain = step->behavior == DT_SPLIT_ISOLATED || (step->behavior == DT_SPLIT_REMOVED && step->invert);
    if (!literal && plain) split_known(text, step);
    return DT_OK;
}

static dt_err read_byte_level(dt_splitter *s, const dt_spec *spec)
{
    bool prefix = true, regex = true, trim = true;
    dt_split_step *step = NULL;
    DT_TRY(dt_spec_only(spec, "type add_prefix_space trim_offsets use_regex"));
    DT_TRY(dt_spec_bool(spec, "add_prefix_space", &prefix));
    DT_TRY(dt_spec_bool(spec, "use_regex", &regex));
    DT_TRY(dt_spec_bool(spec, "trim_offsets", &trim));
    if (prefix) {
        DT_TRY(new_step(s, spec, &step));
        *step = (dt_split_step){
            .kind = DT_SPLIT_SPACES, .prefix = " ", .at_line = DT_THERE_LOCAL, .at_space = DT_THERE_LOCAL};
    }
    if (regex) {
        DT_TRY(add_pattern(s, spec, gpt2, DT_REGEX_ONIGURUMA, DT_SPLIT_ISOLATED, false, &step));
        split_known(gpt2, step);
    }
    s->ends_with_bytes = true;
    return DT_OK;
}

static dt_err read_scheme(const dt_spec *spec, dt_prefix_where *where)
{
    const char *scheme = NULL;
    bool add_prefix = true;
    DT_TRY(dt_spec_bool(spec, "add_prefix_space", &add_prefix)); /* older files */
    DT_TRY(dt_spec_string(spec, "prepend_scheme", &scheme));
    *where = add_prefix ? DT_PREFIX_ALWAYS : DT_PREFIX_NEVER;
    if (!scheme) return DT_OK;
    *where = strcmp(scheme, "always") == 0  ? DT_PREFIX_ALWAYS
             : strcmp(scheme, "first") == 0 ? DT_PREFIX_FIRST
                                            : DT_PREFIX_NEVER;
    if (*where == DT_PREFIX_NEVER && strcmp(scheme, "never") != 0)
        return dt_spec_bad(spec, "prepend_scheme", "always, first or never");
    return DT_OK;
}

dt_err dt_metaspace_read(const dt_spec *spec, char replacement[5], dt_prefix_where *where, bool *split)
{
    const char *text = "\xe2\x96\x81";
    DT_TRY(dt_spec_only(spec, "type replacement add_prefix_space prepend_scheme split str_rep"));
    DT_TRY(dt_spec_string(spec, "replacement", &text));
    const size_t n = strlen(text);
    if (n == 0 || dt_utf8_length(text, n) != n) return dt_spec_bad(spec, "replacement", "one character");
    memcpy(replacement, text, n + 1);
    *split = true;
    DT_TRY(dt_spec_bool(spec, "split", split));
    return read_scheme(spec, where);
}

static dt_err read_metaspace(dt_splitter *s, const dt_spec *spec)
{
    dt_split_step *step = NULL;
    bool split;
    DT_TRY(new_step(s, spec, &step));
    *step = (dt_split_step){
        .kind = DT_SPLIT_SPACES, .replaces = true, .at_line = DT_THERE_LOCAL, .at_space = DT_THERE_LOCAL};
    DT_TRY(dt_metaspace_read(spec, step->prefix, &step->where, &split));
    if (!split) return DT_OK;
    DT_TRY(add_pattern(s, spec, step->prefix, DT_REGEX_LITERAL, DT_SPLIT_WITH_NEXT, false, &step));
    step->at_line = DT_THERE_LOCAL;
    step->at_space = DT_THERE_SPLIT;
    return DT_OK;
}

/* Splits by a built-in expression. */
static const struct plain {
    const char *type, *keys, *pattern;
    dt_split_behavior behavior;
    bool invert;
    dt_split_there there;
} plain[] = {
    {"Digits", "type individual_digits", "\\p{numeric}", DT_SPLIT_CONTIGUOUS, false, DT_THERE_LOCAL},
    {"Punctuation", "type behavior", "\\p{punct}", DT_SPLIT_ISOLATED, false, DT_THERE_LOCAL},
    {"Whitespace", "type",
     "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]+|[^\\p{Alphabetic}\\p{M}\\p{Nd}"
     "\\p{Pc}\\x{200c}\\x{200d}\\p{White_Space}]+",
     DT_SPLIT_REMOVED, true, DT_THERE_SPLIT},
    {"WhitespaceSplit", "type", "\\p{White_Space}", DT_SPLIT_REMOVED, false, DT_THERE_SPLIT},
};

static dt_err read_plain(dt_splitter *s, const dt_spec *spec, const struct plain *p)
{
    bool individual = false;
    dt_split_behavior behavior = p->behavior;
    dt_split_step *step = NULL;
    DT_TRY(dt_spec_only(spec, p->keys));
    DT_TRY(read_behavior(spec, &behavior));
    DT_TRY(dt_spec_bool(spec, "individual_digits", &individual));
    DT_TRY(
        add_pattern(s, spec, p->pattern, DT_REGEX_OURS, individual ? DT_SPLIT_ISOLATED : behavior, p->invert, &step));
    step->at_line = step->at_space = p->there;
    return DT_OK;
}

static dt_err read_step(void *stage, const dt_spec *spec, const char *type)
{
    dt_splitter *s = stage;
    DT_TRY(dt_splitter_map_bytes(s)); /* a step follows the byte-level step, so the splitter must map bytes itself */
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(s, spec);
    if (strcmp(type, "Split") == 0) return read_split(s, spec);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(s, spec);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(type, plain[i].type) == 0) return read_plain(s, spec, &plain[i]);
    return dt_spec_bad(spec, "type",
                       "ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit or Sequence");
}

dt_err dt_splitter_map_bytes(dt_splitter *s)
{
    if (!s->ends_with_bytes) return DT_OK;
    DT_CHECK(s->n_steps < DT_SPLIT_MAX, DT_ERR_DATA, "at most 32 pre-tokenizers");
    s->step[s->n_steps++] =
        (dt_split_step){.kind = DT_SPLIT_MAP, .at_line = DT_THERE_LOCAL, .at_space = DT_THERE_LOCAL};
    s->ends_with_bytes = false;
    return DT_OK;
}

dt_err dt_splitter_read(dt_splitter *s, const dt_spec *root)
{
    dt_spec spec;
    *s = (dt_splitter){0};
    return dt_spec_get(root, "pre_tokenizer", &spec) ? dt_stage_read(s, &spec, "pretokenizers", read_step) : DT_OK;
}

void dt_splitter_free(dt_splitter *s)
{
    for (int i = 0; i < s->n_steps; i++) dt_regex_free(s->step[i].pattern);
    *s = (dt_splitter){0};
}

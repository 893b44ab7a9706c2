/* bytes_tokenizer.c - the tokenizer "bytes" for other programs: a byte-level BPE whose vocabulary is the 256 bytes,
 * without merges.
 *
 * tokenizer.json is text, so byte-level vocabularies represent bytes by printable characters (Radford et al. 2019;
 * transformers' bytes_to_unicode). Printable Latin-1 characters represent themselves. The other bytes are numbered from
 * U+0100. */
#include "tokenizer_files.h"
#include <jansson.h>
#include <stdlib.h>

static const char eos_token[] = "<|endoftext|>";

static bool is_printable(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

/* UTF-8 of a code point below U+0800 */
static json_t *character(int code)
{
    const char two[] = {(char)(0xc0 | code >> 6), (char)(0x80 | (code & 0x3f))}, one = (char)code;
    return code < 0x80 ? json_stringn(&one, 1) : json_stringn(two, 2);
}

static json_t *make_vocabulary(void)
{
    json_t *vocabulary = json_object();
    int next = 0x100;
    for (int byte = 0; byte < 256 && vocabulary; byte++) {
        json_t *key = character(is_printable(byte) ? byte : next++);
        if (key) json_object_set_new(vocabulary, json_string_value(key), json_integer(byte));
        json_decref(key);
    }
    return vocabulary;
}

static char *dump(json_t *root)
{
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

char *bytes_tokenizer_json(void)
{
    return dump(json_pack("{s:s, s:n, s:n, s:[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}], s:n, s:{s:s, s:b, s:b, s:b}, s:n, "
                          "s:{s:s, s:b, s:b, s:b},"
                          " s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}}",
                          "version", "1.0", "truncation", "padding", "added_tokens", "id", (int)BYTES_EOS, "content",
                          eos_token, "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1,
                          "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0,
                          "use_regex", 0, "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 0,
                          "trim_offsets", 0, "use_regex", 0, "model", "type", "BPE", "dropout", "unk_token",
                          "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                          "ignore_merges", 0, "vocab", make_vocabulary(), "merges"));
}

char *bytes_tokenizer_config_json(void)
{
    return dump(json_pack("{s:s, s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "eos_token", eos_token,
                          "clean_up_tokenization_spaces", 0));
}

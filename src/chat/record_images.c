/* record_images.c - images of a record and their positions in its texts. Datasets and prompts share
 * this code, so that a record means the same in training and in generation. */
#include "dtrain/chat/chat.h"
#include "dtrain/text/utf8.h"
#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

dt_err dt_image_names_add(dt_image_names *names, const char *path)
{
    DT_GROW(names->path, names->n, "out of memory for the names of %d images", names->n + 1);
    names->path[names->n++] = path;
    return DT_OK;
}

void dt_image_names_free(dt_image_names *names)
{
    free(names->path);
    *names = (dt_image_names){0};
}

const char *dt_image_name_of(const json_t *image)
{
    const json_t *bytes = json_object_get(image, "bytes"),
                 *name = json_object_get(json_is_object(bytes) ? bytes : image, DT_IMAGE_OF_ROW);
    if (!name) name = json_is_object(image) ? json_object_get(image, "path") : image;
    const char *text = json_string_value(name);
    return text && strlen(text) == json_string_length(name) ? text : NULL;
}

bool dt_json_has_bytes(const json_t *value)
{
    const char *key;
    json_t *one;
    size_t i;
    json_array_foreach(value, i, one) if (dt_json_has_bytes(one)) return true;
    json_object_foreach((json_t *)value, key, one) if (dt_json_has_bytes(one)) return true;
    return json_object_get(value, DT_IMAGE_OF_ROW) != NULL;
}

static dt_err add_named(dt_image_names *names, const char *name, const char *key)
{
    DT_CHECK(name && name[0], DT_ERR_DATA, "%s: expected a path, or a list of them", key);
    return dt_image_names_add(names, name);
}

static const char *const KEYS[] = {"image", "images", "image_bytes"};
enum { N_KEYS = sizeof KEYS / sizeof KEYS[0] };

dt_err dt_image_names_list(dt_image_names *names, const json_t *record)
{
    const char *found = NULL;
    names->n = 0;
    for (size_t k = 0; k < N_KEYS; k++) {
        const json_t *one, *list = json_object_get(record, KEYS[k]);
        const int before = names->n;
        size_t i;
        if (!list || json_is_null(list)) continue;
        if (!json_is_array(list)) DT_TRY(add_named(names, dt_image_name_of(list), KEYS[k]));
        json_array_foreach(list, i, one) DT_TRY(add_named(names, dt_image_name_of(one), KEYS[k]));
        if (names->n == before) continue;
        DT_CHECK(!found, DT_ERR_DATA, "%s and %s: expected only one of them", found, KEYS[k]);
        found = KEYS[k];
    }
    return DT_OK;
}

const char *dt_image_key(const json_t *record)
{
    for (size_t k = 0; k < N_KEYS; k++) {
        const json_t *any = json_object_get(record, KEYS[k]);
        if (dt_image_name_of(any) || dt_image_name_of(json_array_get(any, 0))) return KEYS[k];
    }
    return NULL;
}

dt_err dt_image_names_take(dt_image_names *names, const dt_messages *m)
{
    bool any = false;
    for (int i = 0; i < m->images.n; i++) any |= m->images.path[i] != NULL;
    if (!any) return DT_OK;
    DT_CHECK(names->n == 0, DT_ERR_DATA,
             "images are given both by the record and by its messages: expected only one of them");
    for (int i = 0; i < m->images.n; i++) DT_TRY(add_named(names, m->images.path[i], "a part of type image"));
    return DT_OK;
}

dt_err dt_messages_place_images(dt_messages *m, int n)
{
    dt_message *first = NULL;
    if (!m->image_text || n == 0) return DT_OK;
    for (int i = m->n - 1; i >= 0; i--) {
        if (memmem(m->item[i].text, m->item[i].nbytes, m->image_text, strlen(m->image_text))) return DT_OK;
        if (m->item[i].role == DT_ROLE_USER) first = &m->item[i];
    }
    if (!first) return DT_OK;
    first->text = dt_text_after_images(m->image_text, m->image_line, n, first->text, &first->nbytes);
    first->parts = NULL; /* the parts lack these images */
    return dt_messages_own(m, (char *)first->text);
}

const char *dt_say_placeholders(dt_placeholder_words *out, const char *image_text, int64_t n_placeholders,
                                const char *owner, int64_t n_images)
{
    char placeholders[24] = "no", images[24] = "no";
    if (n_placeholders) snprintf(placeholders, sizeof placeholders, "%" PRId64, n_placeholders);
    if (n_images) snprintf(images, sizeof images, "%" PRId64, n_images);
    const char *many = !image_text && n_placeholders > 1 ? "s" : "";
    snprintf(out->text, sizeof out->text, "the text has %s %.80s%s, but %s has %s image%s", placeholders,
             image_text ? image_text : "placeholder", many, owner, images, n_images > 1 ? "s" : "");
    return out->text;
}

static dt_err name_of_id(const dt_tokenizer *t, int32_t id, const char **name)
{
    *name = dt_tokenizer_token(t, id);
    DT_CHECK(*name && **name, DT_ERR_DATA, "the tokenizer lacks token %" PRId32 ", which images need", id);
    return DT_OK;
}

dt_err dt_wrap_images(dt_encoder *e, const dt_tokenizer *t, const dt_image_wrap *w, char **text)
{
    const bool named = w->name[0] != NULL;
    const char *token, *around[2], *end = named ? "" : "\n\n";
    char *by = NULL;
    *text = NULL;
    DT_TRY(name_of_id(t, w->token, &token));
    for (int i = 0; i < 2; i++) {
        around[i] = w->name[i];
        if (!named) DT_TRY(name_of_id(t, w->around[i], &around[i]));
        DT_CHECK(dt_tokenizer_find(t, around[i]) >= 0, DT_ERR_DATA, "the tokenizer lacks token %s, which images need",
                 around[i]);
    }
    const char *whole = named ? token : around[0];
    const bool made = asprintf(&by, "%s%s%s%s%s", end, around[0], token, around[1], end) >= 0;
    dt_err err = made ? dt_encoder_replace(e, whole, by) : DT_ERR_MEMORY;
    if (err == DT_OK) *text = strdup(whole);
    if (made) free(by);
    DT_CHECK(*text, DT_ERR_MEMORY, "out of memory for the name of an image");
    return DT_OK;
}

char *dt_text_after_images(const char *image_text, bool line, int n, const char *text, size_t *nbytes)
{
    dt_text all = {0};
    for (int i = 0; i < n; i++) dt_text_printf(&all, "%s%s", image_text, line ? "\n" : "");
    dt_text_append(&all, text, *nbytes);
    return dt_text_finish(&all, nbytes);
}

/* ---- locating an image ------------------------------------------------------------------------------------------- */

static bool begins(const char *text, const char *word) { return strncasecmp(text, word, strlen(word)) == 0; }

/* Decode %20 and the like in a path. n: its length, or PATH_MAX. */
static dt_err unescape(const char *name, const char *from, char *path)
{
    size_t n = 0;
    for (; *from && n + 1 < PATH_MAX; from++) {
        const bool coded = *from == '%' && isxdigit((unsigned char)from[1]) && isxdigit((unsigned char)from[2]);
        path[n] = coded ? (char)strtol((char[]){from[1], from[2], '\0'}, NULL, 16) : *from;
        DT_CHECK(path[n], DT_ERR_DATA, "%.200s: expected a path, found a byte 0 (%%00) in it", name);
        n++;
        if (coded) from += 2;
    }
    path[n] = '\0';
    DT_CHECK(!*from, DT_ERR_DATA, "%.200s...: the path of an image is too long", name);
    return DT_OK;
}

/* file:///PATH, file://localhost/PATH, file:/PATH. */
static dt_err path_of_url(const char *name, char *path)
{
    const char *from = name + strlen("file:"), *host = strncmp(from, "//", 2) == 0 ? from + 2 : NULL;
    if (host) from = host + strcspn(host, "/");
    const bool here = !host || from == host || (from - host == 9 && strncasecmp(host, "localhost", 9) == 0);
    DT_CHECK(here && *from == '/', DT_ERR_DATA, "%.200s: expected a local file with its full path, file:///PATH", name);
    return unescape(name, from, path);
}

/* Length of the scheme of an address (http://); 0: it is a path. */
static int scheme_len(const char *name)
{
    const char *end = strstr(name, "://");
    for (const char *p = name; end && p < end; p++)
        if (!isalnum((unsigned char)*p) && !strchr("+-.", *p)) return 0;
    return end ? (int)(end - name) : 0;
}

bool dt_image_is_data(const char *name) { return begins(name, "data:"); }

dt_err dt_image_path(const char *folder, const char *file, const char *name, char *path)
{
    const char *of = file ? file : "", *slash = strrchr(of, '/');
    if (begins(name, "file:")) return path_of_url(name, path);
    const int scheme = scheme_len(name);
    DT_CHECK(scheme == 0, DT_ERR_DATA, "%.200s: images are not downloaded (%.*s): download the file and give its path",
             name, scheme, name);
    const int n = name[0] == '/' ? snprintf(path, PATH_MAX, "%s", name)
                  : folder       ? snprintf(path, PATH_MAX, "%s/%s", folder, name)
                                 : snprintf(path, PATH_MAX, "%.*s%s", slash ? (int)(slash - of) + 1 : 0, of, name);
    DT_CHECK(n > 0 && n < PATH_MAX, DT_ERR_DATA, "%.200s...: the path of an image is too long", name);
    return DT_OK;
}

static int digit_of_base64(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decode base64. White space is skipped; only = may follow the digits. */
static dt_err decode_base64(const char *from, uint8_t *to, size_t *n)
{
    unsigned bits = 0;
    size_t n_digits = 0;
    for (; *from && *from != '='; from++) {
        const int digit = digit_of_base64(*from);
        if (digit < 0 && isspace((unsigned char)*from)) continue;
        DT_CHECK(digit >= 0, DT_ERR_DATA, "expected base64, found a byte 0x%02x after %zu digits", (unsigned char)*from,
                 n_digits);
        bits = bits << 6 | (unsigned)digit;
        if (n_digits++ % 4) to[(*n)++] = (uint8_t)(bits >> (6 - 2 * ((n_digits - 1) % 4)));
    }
    from += strspn(from, "= \t\r\n");
    DT_CHECK(!*from && n_digits % 4 != 1, DT_ERR_DATA, "expected base64, but its %zu digits are incomplete", n_digits);
    return DT_OK;
}

dt_err dt_image_data(const char *name, uint8_t **bytes, size_t *n)
{
    const char *comma = strchr(name, ',');
    const bool base64 = comma && comma - name >= 7 && strncasecmp(comma - 7, ";base64", 7) == 0;
    *bytes = NULL;
    *n = 0;
    DT_CHECK(base64, DT_ERR_DATA, "expected data:image/TYPE;base64,DATA");
    *bytes = malloc(strlen(comma) / 4 * 3 + 4);
    DT_CHECK(*bytes, DT_ERR_MEMORY, "out of memory for the bytes of an image");
    const dt_err err = decode_base64(comma + 1, *bytes, n);
    if (err != DT_OK) {
        free(*bytes);
        *bytes = NULL;
    }
    return err;
}

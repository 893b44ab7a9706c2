/* names.c - what stored tensors are called, and what they should look like (algorithms.md 8.3). */
#include "file.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *ckpt_bare_name(const char *name)
{
    static const char prefix[] = "transformer.";
    return strncmp(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1 : NULL;
}

/* Masks and tables that older versions stored beside the weights: they follow from the configuration. */
bool ckpt_is_ignored(const char *name)
{
    static const char *const endings[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};
    const size_t len = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        const size_t n = strlen(endings[i]);
        if (len > n && strcmp(name + len - n, endings[i]) == 0) return true;
    }
    return false;
}

char *ckpt_shape_text(int n_dims, const int64_t *shape, char *out, size_t out_size)
{
    size_t len = (size_t)snprintf(out, out_size, "[");
    for (int d = 0; d < n_dims && len < out_size; d++)
        len += (size_t)snprintf(out + len, out_size - len, "%s%" PRId64, d ? ", " : "", shape[d]);
    if (len < out_size) snprintf(out + len, out_size - len, "]");
    return out;
}

dt_err ckpt_check_shape(const char *path, const char *name, const dt_tensor *t, int n_dims, const int64_t *shape)
{
    char expected[128], found[256];
    bool same = t->n_dims == n_dims;
    for (int d = 0; same && d < n_dims; d++) same = t->shape[d] == shape[d];
    DT_CHECK(same, DT_ERR_DATA, "%s: tensor `%s`: expected the shape %s of this model, found %s", path, name,
             ckpt_shape_text(t->n_dims, t->shape, expected, sizeof expected),
             ckpt_shape_text(n_dims, shape, found, sizeof found));
    return DT_OK;
}

int32_t ckpt_tied_embedding(const ckpt_slot *slots, int n_slots)
{
    static const char *const names[] = {"model.embed_tokens.weight", "transformer.wte.weight"};
    int32_t embed = -1;
    for (int i = 0; i < n_slots; i++) {
        if (slots[i].state != DT_STATE_PARAM) continue;
        const char *name = slots[i].tensor->name;
        if (strcmp(name, CKPT_HEAD) == 0) return -1;
        if (strcmp(name, names[0]) == 0 || strcmp(name, names[1]) == 0) embed = i;
    }
    return embed;
}

dt_err ckpt_add_file(ckpt_found *found, const char *path)
{
    const size_t n = strlen(path) + 1;
    char *files = realloc(found->files, found->files_len + n);
    DT_CHECK(files, DT_ERR_MEMORY, "%s: no memory for its name", path);
    memcpy(files + found->files_len, path, n);
    found->files = files;
    found->files_len += n;
    return DT_OK;
}

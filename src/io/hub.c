/* hub.c - hints for a path that does not exist. The programs download nothing. */
#include "dtrain/io/io.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Directory names that users often create next to a checkout. No organisation on the hub publishes under them. */
static bool is_local(const char *path, size_t len)
{
    char folder[64];
    if (len >= sizeof folder) return true;
    snprintf(folder, sizeof folder, "%.*s", (int)len, path);
    return dt_has_word("runs models model input data output outputs checkpoints tests docs hf", folder) ||
           dt_is_directory(folder);
}

static bool is_file_name(const char *path)
{
    const char *ending = strrchr(path, '.');
    return ending && ending > path && dt_has_word(".h5 .json .ini .safetensors .jsonl .txt", ending);
}

/* "organisation/model", or one of the few without an organisation. */
static bool is_hub_name(const char *path)
{
    const char *slash = strchr(path, '/');
    if (!slash) return strncmp(path, "gpt2", 4) == 0 || strcmp(path, "distilgpt2") == 0;
    return slash > path && *path != '.' && *path != '~' && slash[1] && !strchr(slash + 1, '/') &&
           !is_local(path, (size_t)(slash - path));
}

const char *dt_missing_model_hint(const char *path, int why, char *out, size_t size)
{
    const char *slash = strrchr(path, '/');
    out[0] = '\0';
    if (why != ENOENT || is_file_name(path)) return out;
    if (is_hub_name(path))
        snprintf(out, size,
                 "; dtrain does not download models: with network access, run `hf download %s --local-dir %s` (pip "
                 "install huggingface_hub), then pass that directory",
                 path, slash ? slash + 1 : path);
    else if (slash && slash[1] && strncmp(path, "models/", 7) == 0)
        snprintf(out, size,
                 "; expected a directory with config.json and model.safetensors: `hf download OWNER/%s --local-dir %s` "
                 "(pip install huggingface_hub) downloads a published model",
                 slash + 1, path);
    return out;
}

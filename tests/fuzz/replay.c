/* replay.c - main() of a fuzz target without libFuzzer: runs the files of the folders given, one test line for each. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
    FILE *in = fopen(path, "rb");
    if (!in) return printf("not ok %s: cannot be read\n", path), 1;
    fseek(in, 0, SEEK_END);
    const long size = ftell(in);
    rewind(in);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    const size_t n = fread(data, 1, (size_t)size, in);
    fclose(in);
    fprintf(stderr, "replay %s\n", path); /* the last such line names the input that crashes */
    LLVMFuzzerTestOneInput(data, n);
    free(data);
    printf("ok %s\n", path);
    return 0;
}

int main(int argc, char **argv)
{
    int n_bad = 0;
    for (int i = 1; i < argc; i++) {
        struct dirent **entries;
        const int n = scandir(argv[i], &entries, NULL, alphasort);
        if (n < 0) printf("skip %s: no such folder\n", argv[i]);
        for (int j = 0; j < n; j++) {
            char path[1024];
            snprintf(path, sizeof path, "%s/%s", argv[i], entries[j]->d_name);
            if (entries[j]->d_name[0] != '.') n_bad += replay(path);
            free(entries[j]);
        }
        if (n >= 0) free(entries);
    }
    return n_bad ? 1 : 0;
}

/* fuzz_config.c - any bytes as a configuration: an error or a configuration that, written and read again, is the same.
 *
 * The convention of this folder. fuzz_NAME.c defines LLVMFuzzerTestOneInput (libFuzzer's entry) and nothing else; it
 * returns 0, and calls abort() where a property does not hold. Inputs worth keeping are files in tests/data/fuzz/NAME/.
 *   make fuzz FUZZ_SECONDS=20   builds every target with clang and runs each for so long (new inputs stay under
 *   build/fuzz)
 *   make test                   builds it with replay.c instead, which runs the kept inputs as plain regression tests
 * A target that needs a file writes its input to one (mkstemp, or memfd_create and /proc/self/fd/N). */
#include "dtrain/config/config.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

/* The part after a zero byte, if any, is an override. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    const char *override = strlen(text) < size ? text + strlen(text) + 1 : NULL;
    dt_config a, b;
    dt_error_clear();
    if (dt_config_parse(&a, "fuzz", text, override ? 1 : 0, &override) == DT_OK) {
        char *written = dt_config_text(&a);
        must(dt_config_parse(&b, "written", written, 0, NULL) == DT_OK);
        char *again = dt_config_text(&b);
        must(strcmp(written, again) == 0);
        free(written);
        free(again);
        dt_config_free(&a);
        dt_config_free(&b);
    } else {
        must(dt_error_message()[0] != '\0');
    }
    free(text);
    return 0;
}

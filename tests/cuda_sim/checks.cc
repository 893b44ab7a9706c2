/* checks.cc - what the compiler calls where a kernel uses an address that its type does not allow, an index outside of
 * an array, or shifts too far (-fsanitize=alignment,bounds,shift): a runtime of our own, which knows the lane. */
#include "block.h"

struct source_place {
    const char *file;
    uint32_t line, column;
};
struct any_data {
    source_place at; /* all kinds of data begin with it */
};
struct mismatch_data {
    source_place at;
    const void *type;
    unsigned char log_align, kind;
};

extern "C" {
#define WRONG(name, what)                                                                                              \
    void name(const any_data *data, size_t, size_t) { sim_wrong("%s:%u: %s", data->at.file, data->at.line, what); }

void __ubsan_handle_type_mismatch_v1(const mismatch_data *data, size_t ptr)
{
    sim_wrong("%s:%u: address %#zx is not a multiple of %d", data->at.file, data->at.line, ptr, 1 << data->log_align);
}
void __ubsan_handle_type_mismatch_v1_abort(const mismatch_data *data, size_t ptr)
{
    __ubsan_handle_type_mismatch_v1(data, ptr);
}
WRONG(__ubsan_handle_out_of_bounds, "an index outside of its array")
WRONG(__ubsan_handle_out_of_bounds_abort, "an index outside of its array")
WRONG(__ubsan_handle_shift_out_of_bounds, "a shift by more bits than there are")
WRONG(__ubsan_handle_shift_out_of_bounds_abort, "a shift by more bits than there are")
}

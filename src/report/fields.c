/* fields.c - TensorBoard sorts groups by name, upper case first. "Loss" is therefore the first group. */
#include "fields.h"
#include <string.h>

void dt_fields_of(const dt_train_record *rec, dt_field fields[DT_N_FIELDS])
{
    const dt_field all[DT_N_FIELDS] = {
        {"step", NULL, (double)rec->step, true},
        {"loss", "Loss/train", rec->loss, true},
        {"lr", "train/lr", rec->lr, true},
        {"grad_norm", "train/grad_norm", rec->grad_norm, true},
        {"tokens", "train/tokens", (double)rec->tokens, true},
        {"samples", "train/samples", (double)rec->samples, true},
        {"step_time", "speed/step_time", rec->step_time, true},
        {"tokens_per_second", "speed/tokens_per_second", rec->tokens_per_second, true},
        {"memory_device", "memory/device", (double)rec->memory_device, true},
        {"memory_pinned", "memory/pinned", (double)rec->memory_pinned, true},
        {"memory_host", "memory/host", (double)rec->memory_host, true},
        {"flops_per_second", "speed/flops_per_second", rec->flops_per_second, rec->flops_per_second > 0},
        {"mfu", "speed/mfu", rec->mfu, rec->mfu > 0},
        {"skipped", "train/skipped", rec->skipped, rec->skipped}};
    memcpy(fields, all, sizeof all);
}

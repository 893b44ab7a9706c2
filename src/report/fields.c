/* fields.c - TensorBoard sorts groups by name, upper case first. "Loss" is therefore the first group. Prometheus
 * recommends base units, and "total" at the end of a counter's name. */
#include "fields.h"
#include <string.h>

#define OF_RECORD(field) (double)rec->field, true
#define IF_POSITIVE(field) (double)rec->field, rec->field > 0

void dt_fields_of(const dt_train_record *rec, dt_field fields[DT_N_FIELDS])
{
    const dt_field all[DT_N_FIELDS] = {
        {"step", NULL, "step", "gauge", "Optimizer steps done.", OF_RECORD(step)},
        {"loss", "Loss/train", "loss", "gauge", "Training loss.", OF_RECORD(loss)},
        {"lr", "train/lr", "learning_rate", "gauge", "Learning rate.", OF_RECORD(lr)},
        {"grad_norm", "train/grad_norm", "grad_norm", "gauge", "Norm of the gradient before clipping.",
         OF_RECORD(grad_norm)},
        {"tokens", "train/tokens", "tokens_total", "counter", "Tokens since the start of the run, of all ranks.",
         OF_RECORD(tokens)},
        {"samples", "train/samples", "samples_total", "counter", "Samples since the start of the run, of all ranks.",
         OF_RECORD(samples)},
        {"step_time", "speed/step_time", "step_seconds", "gauge", "Time of an optimizer step.", OF_RECORD(step_time)},
        {"tokens_per_second", "speed/tokens_per_second", "tokens_per_second", "gauge",
         "Tokens per second, of all ranks.", OF_RECORD(tokens_per_second)},
        {"memory_device", "memory/device", "memory_device_bytes", "gauge", "Peak of device memory, maximum over ranks.",
         OF_RECORD(memory_device)},
        {"memory_pinned", "memory/pinned", "memory_pinned_bytes", "gauge",
         "Peak of pinned host memory, maximum over ranks.", OF_RECORD(memory_pinned)},
        {"memory_host", "memory/host", "memory_host_bytes", "gauge", "Peak resident set, maximum over ranks.",
         OF_RECORD(memory_host)},
        {"flops_per_second", "speed/flops_per_second", "flops_per_second", "gauge",
         "Model FLOPs per second, of all ranks.", IF_POSITIVE(flops_per_second)},
        {"mfu", "speed/mfu", "mfu_ratio", "gauge", "Model FLOPs utilization.", IF_POSITIVE(mfu)},
        {"skipped", "train/skipped", "skipped", "gauge",
         "1 if the last update was skipped because a gradient was not finite.", IF_POSITIVE(skipped)}};
    memcpy(fields, all, sizeof all);
}

/* chips.h - what GPUs can do at most, by their makers' data sheets: the base of model-FLOPs utilisation and of the
 * predictions of --plan. */
#ifndef DTRAIN_CHIPS_H
#define DTRAIN_CHIPS_H

#include "dtrain/core/core.h"

/** A chip. Rates are peaks, per second: of operations, where a multiply-add is two and nothing is sparse, and of bytes,
 *  over links in one direction. */
typedef struct dt_chip {
    const char *name;     /* of --gpu: "h100-pcie" */
    const char *title;    /* for people: "H100 PCIe, 80 GB" */
    const char *words[3]; /* that its name at the driver has; NULL: fewer */
    double half_flops;    /* products of bf16 or fp16 on tensor cores, summed in fp32 */
    double tf32_flops;    /* products of TF32 on tensor cores; no operation of ours rounds to it */
    double float_flops;   /* fp32, without tensor cores */
    double memory_nbytes, memory_rate;
    double nvlink_rate;  /* to the other GPUs of its node, together */
    double host_rate;    /* to the host: PCIe, or NVLink-C2C */
    double network_rate; /* of its part of the node's adapters, in the maker's own node (DGX) */
} dt_chip;

/** The chip of that name for --gpu; NULL: none. */
const dt_chip *dt_chip_named(const char *name);
/** The chip that a driver calls so ("NVIDIA H100 80GB HBM3"); NULL: not in the table. NULL is no name. */
const dt_chip *dt_chip_of(const char *driver_name);
/** Is that the name of a part of a GPU (MIG), which has no row? NULL: no. */
bool dt_chip_is_part(const char *driver_name);
/** The names for --gpu, comma separated. */
const char *dt_chip_names(void);
/** The peak of matrix products in that type, as this program computes them: fp32 is not rounded to TF32. */
double dt_chip_flops(const dt_chip *chip, dt_dtype dt);

#endif

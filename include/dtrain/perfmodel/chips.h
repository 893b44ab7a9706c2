/* chips.h - peak rates of GPUs from their makers' data sheets, for model-FLOPs utilisation and the predictions of
 * --plan. Every function is Local. */
#ifndef DTRAIN_CHIPS_H
#define DTRAIN_CHIPS_H

#include "dtrain/core/core.h"

/** A chip. Rates are peaks per second: dense operations (a multiply-add counts as two), and bytes, for links in one
 *  direction. */
typedef struct dt_chip {
    const char *name;     /* for --gpu: "h100-pcie" */
    const char *title;    /* for users: "H100 PCIe, 80 GB" */
    const char *words[3]; /* words in the driver's name; NULL: fewer */
    double half_flops;    /* bf16 or fp16 matmuls on tensor cores, with fp32 sums */
    double tf32_flops;    /* TF32 matmuls on tensor cores; dtrain does not use them */
    double float_flops;   /* fp32, without tensor cores */
    double memory_nbytes, memory_rate;
    double nvlink_rate;  /* to all other GPUs of its node together */
    double host_rate;    /* to the host: PCIe, or NVLink-C2C */
    double network_rate; /* its share of the node's adapters, in the maker's own node (DGX) */
} dt_chip;

/** The chip with this --gpu name; NULL: none. */
const dt_chip *dt_chip_named(const char *name);
/** The chip with this driver name ("NVIDIA H100 80GB HBM3"); NULL: not in the table. driver_name may be NULL. */
const dt_chip *dt_chip_of(const char *driver_name);
/** Is it the name of a GPU partition (MIG), which has no row? driver_name may be NULL. */
bool dt_chip_is_part(const char *driver_name);
/** All names for --gpu, comma-separated. */
const char *dt_chip_names(void);
/** Peak rate of matmuls in a type, as dtrain computes them: fp32 is not rounded to TF32. */
double dt_chip_flops(const dt_chip *chip, dt_dtype dt);

#endif

/* amx.h - the processor's matrix unit: eight tiles of 16 rows of 64 bytes, of which products keep sums in 0 to 3 (two
 * by two) and their operands in 4 to 7. What is computed with them: product_bf16.c, int8_units.c. */
#ifndef DTRAIN_DEVICE_ISA_AMX_H
#define DTRAIN_DEVICE_ISA_AMX_H

#include <immintrin.h>
#include <stdint.h>

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

__attribute__((target("amx-tile"))) static void amx_begin(void)
{
    /* static: gcc takes the instruction to read 8 bytes, and would drop the stores to the rest */
    static const tile_config config = {
        .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
}
__attribute__((target("amx-tile"))) static void amx_end(void) { _tile_release(); }

#endif

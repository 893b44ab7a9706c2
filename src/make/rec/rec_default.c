/* rec_default.c - input/minionerec.json as it is, in the library: the texts of MiniOneRec (AkaliKong/MiniOneRec,
 * data.py), letter by letter, slips included, as published checkpoints were trained on them. */
#include "rec.h"

__asm__(".pushsection .rodata\n"
        ".globl dt_rec_default\n"
        ".type dt_rec_default, %object\n"
        "dt_rec_default:\n"
        ".incbin \"input/minionerec.json\"\n"
        ".byte 0\n"
        ".size dt_rec_default, . - dt_rec_default\n"
        ".popsection\n");

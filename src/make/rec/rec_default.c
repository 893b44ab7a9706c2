/* rec_default.c - a verbatim copy of input/minionerec.json. Texts are those of MiniOneRec
 * (AkaliKong/MiniOneRec, data.py) including their typos, because published checkpoints were trained on
 * them. */
#include "rec.h"

__asm__(".pushsection .rodata\n"
        ".globl dt_rec_default\n"
        ".type dt_rec_default, %object\n"
        "dt_rec_default:\n"
        ".incbin \"input/minionerec.json\"\n"
        ".byte 0\n"
        ".size dt_rec_default, . - dt_rec_default\n"
        ".popsection\n");

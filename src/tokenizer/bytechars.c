/* bytechars.c - bytes as printable characters (GPT-2's encoder). Printable Latin-1 characters represent themselves.
 * Other bytes are mapped, in order, to U+0100 and the following characters. */
#include "bpe.h"
#include "dtrain/text/utf8.h"

static bool prints(unsigned c)
{
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

/* The 68 bytes that are not printable: 0..0x20, 0x7f..0xa0, 0xad. */
uint32_t dt_byte_char(unsigned char byte)
{
    if (prints(byte)) return byte;
    return 0x100u + (byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7fu + 33 : 67);
}

int dt_char_byte(uint32_t c)
{
    if (c < 0x100) return prints(c) ? (int)c : -1;
    c -= 0x100;
    return c < 33 ? (int)c : c < 67 ? (int)(c - 33 + 0x7f) : c == 67 ? 0xad : -1;
}

void dt_text_append_mapped(dt_text *out, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c[4];
        dt_text_append(out, c, dt_utf8_put(dt_byte_char((unsigned char)bytes[i]), c));
    }
}

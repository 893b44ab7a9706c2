/* byte_sizes.c - byte sizes for users: three significant digits, powers of 1024. */
#include "dtrain/core/core.h"
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

char *dt_format_bytes(double nbytes, char *out)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int u = 0;
    double v = fabs(nbytes);
    while (v >= 1023.5 && u < 6) v /= 1024, u++; /* 1023.5 would be printed as 1024 */
    int digits = u == 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2;
    snprintf(out, 24, v < 1e6 ? "%s%.*f %s" : "%s%.*e %s", nbytes < 0 ? "-" : "", v < 1e6 ? digits : 3, v, units[u]);
    return out;
}

char *dt_format_count(double n, char *out)
{
    static const char letters[] = {0, 'k', 'M', 'G', 'T', 'P', 'E'};
    size_t i = 0;
    if (!isfinite(n)) n = 0;
    for (; n >= 999.5 && i + 1 < sizeof letters; i++) n /= 1000;
    const char unit[2] = {letters[i], 0};
    snprintf(out, 24, "%.*f%s", n >= 99.95 || (i == 0 && (n >= 10 || n == rint(n))) ? 0 : n >= 9.995 ? 1 : 2, n, unit);
    return out;
}

char *dt_format_duration(double seconds, char *out)
{
    enum { SIZE = 24, MINUTE = 60, HOUR = 3600, DAY = 86400 };
    if (!(seconds >= 0) || seconds > 1e5 * DAY) {
        snprintf(out, SIZE, "?");
        return out;
    }
    const int64_t s = (int64_t)(seconds + 0.5);
    if (s < MINUTE)
        snprintf(out, SIZE, "%" PRId64 "s", s);
    else if (s < HOUR)
        snprintf(out, SIZE, "%" PRId64 "m%02" PRId64 "s", s / MINUTE, s % MINUTE);
    else if (s < DAY)
        snprintf(out, SIZE, "%" PRId64 "h%02" PRId64 "m", s / HOUR, s % HOUR / MINUTE);
    else
        snprintf(out, SIZE, "%" PRId64 "d%02" PRId64 "h", s / DAY, s % DAY / HOUR);
    return out;
}

/* The value of a unit in bytes; *len: its number of characters, 0 if it is not a unit. */
static double unit_bytes(const char *text, size_t *len)
{
    static const char letters[] = "KMGTPE";
    const char *at = text[0] ? strchr(letters, toupper((unsigned char)text[0])) : NULL;
    const bool binary = at && tolower((unsigned char)text[1]) == 'i';
    *len = at ? (binary ? 2 : 1) : 0;
    if (tolower((unsigned char)text[*len]) == 'b') *len += 1;
    return at ? pow(binary ? 1024 : 1000, (double)(at - letters + 1)) : 1;
}

/* Parse a decimal number and its unit; negative if invalid. */
static double parse(const char *p)
{
    char *end;
    size_t len;
    while (isspace((unsigned char)*p)) p++;
    /* strtod would accept hexadecimal */
    if (!isdigit((unsigned char)*p) || tolower((unsigned char)p[1]) == 'x') return -1;
    double v = strtod(p, &end);
    while (*end == ' ') end++;
    v *= unit_bytes(end, &len);
    end += len;
    while (isspace((unsigned char)*end)) end++;
    return *end == '\0' ? v : -1;
}

bool dt_parse_bytes(const char *text, uint64_t *nbytes)
{
    const double v = parse(text);
    if (!(v >= 0 && v < 0x1p63)) return false;
    *nbytes = (uint64_t)v;
    return true;
}

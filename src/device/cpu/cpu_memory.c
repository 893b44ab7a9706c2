/* cpu_memory.c - host memory for tensors: mapped, in huge pages, first touched by all threads.
 *
 * First touch runs at 2 GB/s with pages of 4 KiB and at 13 GB/s with huge pages. Most systems provide huge pages only
 * on request. Each thread touches the range that it will work on, so that on NUMA nodes its memory is local. Before
 * touching a large block, cpu_grab checks the free memory: an error message is better than the OOM killer. */
#include "cpu.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define LARGE ((size_t)1 << 20) /* blocks of at least this size are mapped */

static size_t mapped_bytes(size_t nbytes) { return (nbytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1); }

/* A mapping that begins at a huge page. The excess on either side is unmapped. */
static void *map_aligned(size_t nbytes)
{
    const size_t total = nbytes + HUGE_PAGE;
    char *p = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    char *begin = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (begin > p) munmap(p, (size_t)(begin - p));
    const size_t tail = (size_t)(p + total - (begin + nbytes));
    if (tail) munmap(begin + nbytes, tail);
    madvise(begin, nbytes, MADV_HUGEPAGE); /* a hint: without it memory is only slower */
    return begin;
}

static void touch(char *p, size_t nbytes, int n_threads)
{
    const int64_t n_pages = (int64_t)(nbytes / 4096);
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_pages > 512)
    for (int64_t i = 0; i < n_pages; i++) ((volatile char *)p)[i * 4096] = 0;
}

dt_err cpu_grab(size_t nbytes, int n_threads, void **ptr)
{
    *ptr = NULL;
    if (nbytes > SIZE_MAX - 2 * HUGE_PAGE) return DT_ERR_MEMORY;
    if (nbytes < LARGE) {
        if (posix_memalign(ptr, 64, (nbytes + 63) & ~(size_t)63) != 0) return DT_ERR_MEMORY;
        memset(*ptr, 0, nbytes);
        return DT_OK;
    }
    if (nbytes > dt_host_memory_free() || nbytes > dt_address_space_free()) return DT_ERR_MEMORY;
    if (!(*ptr = map_aligned(mapped_bytes(nbytes)))) return DT_ERR_MEMORY;
    touch(*ptr, nbytes, n_threads);
    return DT_OK;
}

void cpu_drop(void *ptr, size_t nbytes)
{
    if (!ptr) return;
    if (nbytes < LARGE) {
        free(ptr);
    } else {
        munmap(ptr, mapped_bytes(nbytes));
    }
}

dt_err cpu_grow(const cpu_state *cpu, void **p, size_t *size, size_t wanted)
{
    if (wanted <= *size) return DT_OK;
    cpu_drop(*p, *size);
    *size = 0;
    DT_CHECK(cpu_grab(wanted, cpu->n_threads, p) == DT_OK, DT_ERR_MEMORY,
             "cpu device: out of memory for %zu bytes of matmul scratch", wanted);
    *size = wanted;
    return DT_OK;
}

dt_err cpu_alloc(dt_device *dev, dt_memspace space, size_t nbytes, void **ptr)
{
    return cpu_grab(nbytes, cpu_of(dev)->n_threads, ptr);
}
void cpu_free(dt_device *dev, dt_memspace space, void *ptr, size_t nbytes) { cpu_drop(ptr, nbytes); }

/* ---- free memory ------------------------------------------------------------------------------------------------- */

/* The number after key in a file of "key number" lines, or the first word of the file if key is NULL. UINT64_MAX if it
 * is missing, or "max". */
static uint64_t read_number(const char *path, const char *key)
{
    FILE *f = fopen(path, "r");
    if (!f) return UINT64_MAX;
    char line[256];
    uint64_t value = UINT64_MAX;
    const size_t key_len = key ? strlen(key) : 0;
    while (value == UINT64_MAX && fgets(line, sizeof line, f)) {
        unsigned long long v;
        if (key && (strncmp(line, key, key_len) != 0 || (line[key_len] != ' ' && line[key_len] != ':'))) continue;
        if (sscanf(line + key_len + (key && line[key_len] == ':'), "%llu", &v) == 1) value = v;
        if (!key) break;
    }
    fclose(f);
    return value;
}

/* Bytes left below the limit of one control group. Its inactive file cache does not count as used, because the system
 * can drop it. */
static uint64_t group_room(const char *dir, const char *limit_file, const char *usage_file, const char *cache_key)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, limit_file);
    const uint64_t limit = read_number(path, NULL);
    if (limit == UINT64_MAX) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", dir, usage_file);
    uint64_t used = read_number(path, NULL);
    if (used == UINT64_MAX) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    const uint64_t cache = read_number(path, cache_key);
    if (cache != UINT64_MAX && cache < used) used -= cache;
    return used < limit ? limit - used : 0;
}

/* Bytes left below the limits of a group and all its ancestors: the minimum. */
static uint64_t room_up_to(const char *root, const char *group, bool v2)
{
    char dir[1024];
    snprintf(dir, sizeof dir, "%s%s", root, strcmp(group, "/") ? group : "");
    uint64_t room = UINT64_MAX;
    for (size_t len = strlen(dir); len >= strlen(root);) {
        const uint64_t r =
            v2 ? group_room(dir, "memory.max", "memory.current", "inactive_file")
               : group_room(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
        if (r < room) room = r;
        char *slash = strrchr(dir, '/');
        if (!slash) break;
        *slash = 0;
        len = (size_t)(slash - dir);
    }
    return room;
}

static uint64_t cgroup_room(void)
{
    FILE *f = fopen("/proc/self/cgroup", "r");
    if (!f) return UINT64_MAX;
    uint64_t room = UINT64_MAX;
    char line[1024];
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        uint64_t r = UINT64_MAX;
        if (!strcmp(controllers, ":")) r = room_up_to("/sys/fs/cgroup", group, true);
        if (!strcmp(controllers, ":memory")) r = room_up_to("/sys/fs/cgroup/memory", group, false);
        if (r < room) room = r;
    }
    fclose(f);
    return room;
}

size_t dt_host_memory_free(void)
{
    const uint64_t kib = read_number("/proc/meminfo", "MemAvailable"), room = cgroup_room();
    const uint64_t bytes = kib == UINT64_MAX ? UINT64_MAX : kib * 1024;
    const uint64_t least = bytes < room ? bytes : room;
    return least > SIZE_MAX ? SIZE_MAX : (size_t)least;
}

size_t dt_address_space_free(void)
{
    struct rlimit limit;
    unsigned long long pages = 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%llu", &pages) != 1) pages = 0;
    if (f) fclose(f);
    const unsigned long long used = pages * (unsigned long long)sysconf(_SC_PAGESIZE) + DT_ADDRESS_RESERVE;
    return used < limit.rlim_cur ? (size_t)(limit.rlim_cur - used) : 0;
}

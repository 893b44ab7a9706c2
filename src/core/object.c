/* object.c - loads parts of the program as shared objects, because a program that is linked against a library does not
 * start without the library. */
#include "dtrain/core/core.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Directories, relative to the program: its own (a build directory), its parent (tests), the one that make install
 * uses, and the build directory below (a program at the top of the tree). */
static const char *const FOLDERS[] = {"", "../", "../lib/dtrain/", "build/release/"};
enum { N_FOLDERS = sizeof FOLDERS / sizeof FOLDERS[0] };

static bool find_object(const char *file, char *path, size_t path_size)
{
    char program[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return false;
    program[n] = '\0';
    *strrchr(program, '/') = '\0';
    for (int i = 0; i < N_FOLDERS; i++) {
        const int len = snprintf(path, path_size, "%s/%s%s", program, FOLDERS[i], file);
        if (len > 0 && (size_t)len < path_size && access(path, R_OK) == 0) return true;
    }
    return false;
}

/* The section table is at the end of the file. A truncated file (full disk) could still be mapped, and reading it would
 * end the program with a signal. The loader rejects files that are not ELF. */
static bool is_cut_short(const char *path)
{
    ElfW(Ehdr) head;
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool is_elf = fd >= 0 && fstat(fd, &st) == 0 && read(fd, &head, sizeof head) == (ssize_t)sizeof head &&
                        !memcmp(head.e_ident, ELFMAG, SELFMAG);
    if (fd >= 0) close(fd);
    return is_elf && head.e_shoff + (uint64_t)head.e_shentsize * head.e_shnum > (uint64_t)st.st_size;
}

/* The table of an object from another build may have other entries or another order, so it must not be read. */
static bool is_of_these_headers(void *object, const char *symbol)
{
    char name[128];
    snprintf(name, sizeof name, "%s_interface", symbol);
    const char *headers = dlsym(object, name);
    return headers && !strcmp(headers, DT_INTERFACE);
}

const void *dt_object_symbol(const char *file, const char *symbol, bool *stale, char *why, size_t why_size)
{
    char path[PATH_MAX + 64];
    *stale = false;
    if (!find_object(file, path, sizeof path)) {
        snprintf(why, why_size, "this program was built without %s", file);
        return NULL;
    }
    if (is_cut_short(path)) {
        snprintf(why, why_size, "%s is truncated: rebuild it (make) or copy it again", path);
        return NULL;
    }
    void *object = dlopen(path, RTLD_LAZY | RTLD_LOCAL); /* increments the reference count if it is loaded already */
    const void *found = object ? dlsym(object, symbol) : NULL;
    *stale = found && !is_of_these_headers(object, symbol);
    if (!found) snprintf(why, why_size, "%s", dlerror());
    if (*stale)
        snprintf(why, why_size, "%s was built from another version of dtrain than this program: rebuild it (make)",
                 path);
    return *stale ? NULL : found;
}

/* ---- identity of the build --------------------------------------------------------------------------------------- */

typedef struct build_search {
    uintptr_t address;
    char *out;
} build_search;

static bool holds(const struct dl_phdr_info *object, uintptr_t address)
{
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        const uintptr_t begin = object->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD && address >= begin && address - begin < p->p_memsz) return true;
    }
    return false;
}

/* Notes follow each other: sizes of name and contents, type, name, contents, each padded to 4 bytes. */
static void find_build_id(const char *note, size_t nbytes, char *out)
{
    while (nbytes >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) head;
        memcpy(&head, note, sizeof head);
        const size_t name = (head.n_namesz + 3) / 4 * 4, contents = (head.n_descsz + 3) / 4 * 4,
                     all = sizeof head + name + contents;
        const unsigned char *id = (const unsigned char *)note + sizeof head + name;
        if (all > nbytes) return;
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 && !memcmp(note + sizeof head, "GNU", 4))
            for (size_t i = 0; i < head.n_descsz && 2 * i + 2 < DT_BUILD_TEXT; i++) sprintf(out + 2 * i, "%02x", id[i]);
        note += all, nbytes -= all;
    }
}

static int look_into(struct dl_phdr_info *object, size_t size, void *arg)
{
    const build_search *s = arg;
    if (!holds(object, s->address)) return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        if (p->p_type == PT_NOTE)
            find_build_id((const char *)(object->dlpi_addr + p->p_vaddr), p->p_memsz, s->out); /* NOLINT */
    }
    return 1;
}

char *dt_object_build(const void *address, char out[DT_BUILD_TEXT])
{
    *out = '\0';
    dl_iterate_phdr(look_into, &(build_search){(uintptr_t)address, out});
    return out;
}

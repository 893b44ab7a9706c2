/* budget.c - check whether a plan fits into a rank's memory, for --plan, --check and zero.stage = auto. It compares the
 * allocations still to come in the memory spaces of one physical memory with this rank's share of the free memory. The
 * disk of zero.nvme_path counts as one more memory. Each node is assumed to have its own disk. */
#include "../run.h"
#include <sys/statvfs.h>

static rank_memory part_of(size_t nbytes_free, int n_sharing)
{
    const size_t part = nbytes_free == SIZE_MAX ? SIZE_MAX : nbytes_free / (size_t)n_sharing;
    return (rank_memory){.n_sharing = n_sharing, .nbytes = part};
}

/* Unknown if the file system cannot be queried; opening a file there reports the error. */
static size_t disk_free(const char *dir)
{
    struct statvfs fs;
    return statvfs(dir, &fs) == 0 ? (size_t)fs.f_bavail * fs.f_frsize : SIZE_MAX;
}

void run_budget(const dt_run *run, int ranks_per_node, budget *b)
{
    const dt_device *dev = &run->dev;
    const char *disk = run->cfg.zero_nvme_path;
    rank_memory *own = &b->memory[0], *node = &b->memory[1];
    *b = (budget){.n = dev->ops->own_memory ? 2 : 1};
    *own = part_of(dev->ops->memory_free(dev), run->comm ? run->comm->n_sharing : ranks_per_node);
    own->holds[DT_ON_DEVICE] = true;
    own->name = "device memory", own->shared_by = "device";
    if (b->n == 1)
        node = own;
    else
        *node = part_of(dt_host_memory_free(), ranks_per_node);
    if (run->comm && node->nbytes > dt_address_space_free()) node->nbytes = dt_address_space_free();
    node->holds[DT_ON_PINNED] = node->holds[DT_ON_HOST] = true;
    node->name = b->n == 1 ? "memory" : "host memory", node->shared_by = "node";
    if (!disk || !*disk) return;
    rank_memory *file = &b->memory[b->n++];
    *file = part_of(disk_free(disk), ranks_per_node);
    file->holds[DT_IN_FILE] = true;
    file->name = "disk space", file->shared_by = "node";
}

size_t run_part(const dt_memory *bytes, const rank_memory *m)
{
    size_t sum = 0;
    for (int p = 0; p < DT_N_MEMSPACE; p++) sum += m->holds[p] ? dt_memory_on(bytes, (dt_memspace)p) : 0;
    return sum;
}

const rank_memory *run_exceeds(const budget *b, double usable, const dt_memory *needed)
{
    for (int i = 0; i < b->n; i++)
        if ((double)run_part(needed, &b->memory[i]) > usable * (double)b->memory[i].nbytes) return &b->memory[i];
    return NULL;
}

dt_memory run_overhead(const dt_run *run)
{
    dt_memory m = {0};
    m.at[DT_MEM_OTHER][DT_ON_DEVICE] = dt_device_overhead(&run->dev);
    if (run->host.ops) m.at[DT_MEM_OTHER][DT_ON_HOST] = dt_device_overhead(&run->host);
    return m;
}

dt_memory run_held(const dt_run *run)
{
    dt_memory held = dt_ledger_now(&run->ledger);
    const dt_memory overhead = run_overhead(run);
    dt_memory_add(&held, &overhead);
    return held;
}

dt_memory run_missing(const dt_memory *planned, const dt_memory *held)
{
    dt_memory missing = *planned;
    for (int c = 0; c < DT_N_MEMCAT; c++)
        for (int p = 0; p < DT_N_MEMSPACE; p++)
            missing.at[c][p] -= held->at[c][p] < missing.at[c][p] ? held->at[c][p] : missing.at[c][p];
    return missing;
}

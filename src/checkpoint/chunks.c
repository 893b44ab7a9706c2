/* chunks.c - the two chunk buffers for transfers between files and states. */
#include "dtrain/checkpoint/stored.h"
#include <stdlib.h>

void dt_chunks_plan(dt_memory *memory) { memory->at[DT_MEM_STAGING][DT_ON_HOST] += DT_CHUNKS_NBYTES; }

dt_err dt_chunks_open(dt_chunks *c, dt_device *dev)
{
    *c = (dt_chunks){0};
    DT_TRY(dt_buf_alloc(&c->memory, dev, DT_ON_HOST, DT_CHUNKS_NBYTES, DT_MEM_STAGING));
    c->raw = c->memory.ptr;
    c->converted = c->raw + DT_STORED_BUFFER;
    return DT_OK;
}

void dt_chunks_close(dt_chunks *c)
{
    dt_buf_free(&c->memory);
    *c = (dt_chunks){0};
}

dt_err dt_chunks_take(dt_chunks **chunks, const dt_comm *comm)
{
    dt_chunks *c = comm->chunks;
    *chunks = NULL;
    DT_EXPECT(!c || !c->taken);
    if (!c) {
        DT_ALLOC(c, 1, "out of memory for chunks of tensors");
        const dt_err err = dt_chunks_open(c, comm->dev);
        if (err != DT_OK) {
            free(c);
            return err;
        }
    }
    c->taken = true;
    *chunks = c;
    return DT_OK;
}

void dt_chunks_give_back(dt_chunks *c, const dt_comm *comm)
{
    if (!c) return;
    c->taken = false;
    if (c == comm->chunks) return;
    dt_chunks_close(c);
    free(c);
}

/* memory.h - memory of three kinds, which may not be mixed: the device's, pinned memory of the host, which both reach,
 * and the rest of the host's. The first two have ranges of addresses of their own.
 *
 * A thread of the host is the host; while it runs a kernel, a copy or a call of a library it is the device. The host
 * may not touch device memory: where the processor has keys of protection (x86: PKU) it ends the program. What it may
 * touch of pinned memory depends on what streams do with it (host.cc). */
#ifndef CUDA_SIM_MEMORY_H
#define CUDA_SIM_MEMORY_H

#include <stddef.h>

struct sim_range {
    char *from, *to;
};
/** Addresses, most of them without memory. */
sim_range sim_device_memory();
sim_range sim_pinned_memory();
bool sim_is_device(const void *p);
bool sim_is_pinned(const void *p);

/** Where p lies, for messages: "byte 128 of allocation 3 (4000 bytes of device memory)". */
struct sim_place_name {
    char text[96];
};
sim_place_name sim_name_place(const void *p);

/** This thread is the device from now on, or no longer: calls nest. */
void sim_be_the_device(bool on);
struct sim_as_device { /* while one lives */
    sim_as_device() { sim_be_the_device(true); }
    ~sim_as_device() { sim_be_the_device(false); }
};
/** Is this thread the device? */
bool sim_is_the_device();

#endif

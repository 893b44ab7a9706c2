/* host.h - what the host may touch of memory that the device uses (host.cc). */
#ifndef CUDA_SIM_HOST_H
#define CUDA_SIM_HOST_H

#include <stddef.h>

/** Have faults of memory reported from now on. */
void host_watches_faults();
/** What streams do with this pinned memory has changed: open or close its pages. Returns whether any is closed. */
bool host_review(const void *p, size_t nbytes);
/** Open them all. */
void host_opens(const void *p, size_t nbytes);

#endif

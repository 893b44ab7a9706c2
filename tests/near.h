/* near.h - comparison of values within a tolerance, and random values to compare: for tests of losses. */
#ifndef NEAR_H
#define NEAR_H

#include "cases.h"
#include "dtrain/core/core.h"

/** Fails the test unless |found - expected| <= tolerance; also for NaN. */
static inline void assert_near(double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance)) fail_msg("expected %.17g, found %.17g", expected, found);
}

/** From 0 to below 1, the same for the same seed, which is moved on. */
static inline double uniform(uint64_t *seed) { return (double)(dt_mix64((*seed)++) >> 11) * 0x1p-53; }

#endif

/* device_fixture.h - for cmocka programs of one process: the CPU device under test, opened once per group. */
#ifndef DTRAIN_TESTS_DEVICE_FIXTURE_H
#define DTRAIN_TESTS_DEVICE_FIXTURE_H

#include "ref_device.h"
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct fixture {
    dt_device dev;
    dt_ledger ledger;
} fixture;

#define OPS(f) ((f)->dev.ops)

static int open_device(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    return f && dt_device_open(&f->dev, "cpu", 0, 2, &f->ledger) == DT_OK ? 0 : -1;
}

static int close_device(void **state)
{
    fixture *f = *state;
    dt_device_close(&f->dev);
    free(f);
    return 0;
}

#endif

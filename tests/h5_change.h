/* h5_change.h - change a file that has a seal, as another program would: HDF5 cuts the seal off when it closes the
 * file, and the attribute that says there is one has to go. */
#ifndef DTRAIN_TESTS_H5_CHANGE_H
#define DTRAIN_TESTS_H5_CHANGE_H

#include "dtrain/io/io.h"

static inline hid_t open_to_change(const char *path)
{
    const hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    if (file >= 0 && H5Aexists(file, "sealed") > 0) H5Adelete(file, "sealed");
    return file;
}

#endif

/* sample_images.h - images of samples, as dataset files and batches have them. */
#ifndef DTRAIN_DATA_IMAGES_H
#define DTRAIN_DATA_IMAGES_H

#include "../file/dataset_file.h"

/** Placeholders among tokens first .. first+n-1 of a side; 0 in a file without images. */
dt_err dt_dataset_count_placeholders(dt_dataset *d, dt_side side, int64_t first, int64_t n, int64_t *count);

/** Do the texts of sample i have the placeholders of its images, and none as a target? DT_ERR_DATA. */
dt_err dt_dataset_check_images(dt_dataset *d, int64_t i);

#endif

/* sample_images.h - images of samples in dataset files and batches. */
#ifndef DTRAIN_DATA_IMAGES_H
#define DTRAIN_DATA_IMAGES_H

#include "../file/dataset_file.h"

/** Count the placeholders among tokens first .. first+n-1 of a side; 0 for a file without images. */
dt_err dt_dataset_count_placeholders(dt_dataset *d, dt_side side, int64_t first, int64_t n, int64_t *count);

/** Read n images starting at `first`, or their features if the dataset has some, of image_nbytes each. DT_ERR_DATA. */
dt_err dt_dataset_read_for_batch(dt_dataset *d, int64_t first, int64_t n, uint8_t *to, size_t image_nbytes);

/** Check that the texts of sample i have placeholders for exactly its images, none of them a target. DT_ERR_DATA. */
dt_err dt_dataset_check_images(dt_dataset *d, int64_t i);

#endif

/* run_dir.h - dtrain-info for a directory: description and progress of a run. */
#ifndef DTRAIN_MAIN_INFO_RUN_DIR_H
#define DTRAIN_MAIN_INFO_RUN_DIR_H

#include "dtrain/core/core.h"

/** Show the run in a directory (its output_dir or its checkpoint folder) as text, or as a line with a JSON object.
 *  Reads no tensors. DT_ERR_DATA: no metrics, configuration or checkpoints found. */
dt_err info_show_run(const char *dir, bool json);

#endif

/* run_dir.h - dtrain-info on a directory: what a run is and how far it has come. */
#ifndef DTRAIN_MAIN_INFO_RUN_DIR_H
#define DTRAIN_MAIN_INFO_RUN_DIR_H

#include "dtrain/core.h"

/** Show the run in a directory (its output_dir, or the folder of its checkpoints), as text or as one JSON object a
 *  line. Only what is small is read: no tensor. DT_ERR_DATA: neither metrics nor a configuration nor checkpoints are
 *  there. */
dt_err info_show_run(const char *dir, bool json);

#endif

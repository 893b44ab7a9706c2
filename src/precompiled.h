/* precompiled.h - the headers that most files include. The Makefile precompiles them once and gives them to every
 * compilation with -include (gcc only). Each file still includes what it needs: other compilers read it without this
 * header. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtrain/checkpoint/stored.h"
#include "dtrain/data/dataset.h"
#include "dtrain/io/io.h"
#include "dtrain/model/model.h"

/* todo.c - operations that are not written yet. */
#include "cuda.h"


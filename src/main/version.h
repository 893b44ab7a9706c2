/* version.h - the one place of the version. */
#ifndef DTRAIN_VERSION_H
#define DTRAIN_VERSION_H
#define DT_VERSION "0.1.0"
#endif

/* catalogue.h - the items of a recommender, each with a semantic ID (SID): a text of level tokens such as
 * <a_17><b_203><c_5>. MiniOneRec's info file; docs/recommendation.md. */
#ifndef DTRAIN_CATALOGUE_H
#define DTRAIN_CATALOGUE_H

#include "dtrain/core/core.h"
#include "dtrain/tokenizer/tokenizer.h" /* level tokens */

typedef struct dt_catalogue dt_catalogue;

typedef struct dt_catalogue_item {
    const char *sid, *title, *id; /* live as long as the catalogue */
    int32_t line;                 /* of the file, from 1 */
} dt_catalogue_item;

/** Read an info file: lines SID TAB TITLE TAB ITEM_ID in UTF-8; the title is what lies between the first tab and the
 *  last. Blank lines, a byte order mark and CR before the line's end are passed over. Several items may have one SID.
 *  Local. ledger: NULL, or told of its memory (data, on the host); borrowed. DT_ERR_DATA naming file and line: fewer
 *  than two tabs, a SID that is not one or more of `<...>` with no `<`, `>`, blank or control character inside, an
 *  empty or repeated item id, text that is no UTF-8, no items, a file of 4 GiB or more. DT_ERR_MEMORY. */
dt_err dt_catalogue_open(dt_catalogue **c, const char *path, dt_ledger *ledger);
void dt_catalogue_close(dt_catalogue *c); /* safe on NULL */

size_t dt_catalogue_nbytes(const dt_catalogue *c); /* in the ledger; 0 for NULL */

const char *dt_catalogue_path(const dt_catalogue *c);
uint64_t dt_catalogue_fingerprint(const dt_catalogue *c); /* of the file: dt_comm_same_file */
/** Items, in the order of the file. */
int32_t dt_catalogue_n_items(const dt_catalogue *c);
dt_catalogue_item dt_catalogue_get(const dt_catalogue *c, int32_t item);

/** Where a SID begins in a text that may have blanks, line ends and quotes around it; *nbytes: of the SID. */
const char *dt_sid_in(const char *text, size_t *nbytes);
/** The first item of the file with this SID, -1: there is none. */
int32_t dt_catalogue_find(const dt_catalogue *c, const char *sid, size_t nbytes);
/** The item with this id, -1: there is none. */
int32_t dt_catalogue_find_id(const dt_catalogue *c, const char *id, size_t nbytes);
/** Item indices by rising SID (bytes), of equal ones by line: [n_items]. */
const int32_t *dt_catalogue_by_sid(const dt_catalogue *c);
int32_t dt_catalogue_n_sids(const dt_catalogue *c); /* distinct ones */

/** The distinct level tokens of all items, by rising bytes: what a vocabulary grows by, in this order. */
int32_t dt_catalogue_n_levels(const dt_catalogue *c);
const char *dt_catalogue_level(const dt_catalogue *c, int32_t i);

#endif

/* catalogue.h - the items of a recommender, each with a semantic ID (SID): a text of level tokens such as
 * <a_17><b_203><c_5>. MiniOneRec's info file; docs/recommendation.md. Every function is Local. */
#ifndef DTRAIN_CATALOGUE_H
#define DTRAIN_CATALOGUE_H

#include "dtrain/core/core.h"
#include "dtrain/tokenizer/tokenizer.h" /* level tokens */

typedef struct dt_catalogue dt_catalogue;

/** An item. */
typedef struct dt_catalogue_item {
    const char *sid, *title, *id; /* valid until dt_catalogue_close */
    int32_t line;                 /* of the file, from 1 */
} dt_catalogue_item;

/** Read an info file: lines SID TAB TITLE TAB ITEM_ID in UTF-8; the title is between the first and the last tab. Blank
 *  lines, a byte order mark and CR before a line end are ignored. Items may have the same SID.
 *
 *  c       out  closed with dt_catalogue_close; NULL on error
 *  ledger  counts its memory (DT_MEM_DATA, host); borrowed; may be NULL
 *
 *  DT_ERR_DATA naming file and line: fewer than two tabs; a SID that is not one or more of `<...>` without `<`, `>`,
 *  blank or control character inside; an empty or repeated item id; text that is not UTF-8; no items; a file of 4 GiB
 *  or more. DT_ERR_MEMORY. */
dt_err dt_catalogue_open(dt_catalogue **c, const char *path, dt_ledger *ledger);
/** Free the catalogue. Safe on NULL. */
void dt_catalogue_close(dt_catalogue *c);

/** Bytes in the ledger; 0 for NULL. */
size_t dt_catalogue_nbytes(const dt_catalogue *c);

/** Path of the file. Borrowed. */
const char *dt_catalogue_path(const dt_catalogue *c);
/** Hash of the file, for dt_comm_same_file. */
uint64_t dt_catalogue_fingerprint(const dt_catalogue *c);
/** Number of items. */
int32_t dt_catalogue_n_items(const dt_catalogue *c);
/** An item, in file order. */
dt_catalogue_item dt_catalogue_get(const dt_catalogue *c, int32_t item);

/** Find the SID in a text with blanks, line ends and quotes around it. nbytes: out, its length. */
const char *dt_sid_in(const char *text, size_t *nbytes);
/** The first item with this SID; -1: none. */
int32_t dt_catalogue_find(const dt_catalogue *c, const char *sid, size_t nbytes);
/** Item indices sorted by SID (bytes), then by line: [n_items], borrowed. */
const int32_t *dt_catalogue_by_sid(const dt_catalogue *c);
/** Number of distinct SIDs. */
int32_t dt_catalogue_n_sids(const dt_catalogue *c);

/** Number of distinct level tokens of all items. They are sorted by bytes: the order in which a vocabulary is
 *  extended. */
int32_t dt_catalogue_n_levels(const dt_catalogue *c);
/** Level token i. Borrowed. */
const char *dt_catalogue_level(const dt_catalogue *c, int32_t i);

#endif

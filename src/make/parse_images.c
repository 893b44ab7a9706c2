/* parse_images.c - images of a record, and image captions. The number of placeholders in the texts is
 * checked after encoding. */
#include "parse_record.h"
#include "dtrain/core/plural.h"
#include <string.h>

dt_err dt_list_images(dt_parsed_record *r, const json_t *json, const dt_rules *rules)
{
    r->images.n = 0;
    if (rules->image_text) return dt_image_names_list(&r->images, json);
    const char *key = dt_image_key(json);
    DT_CHECK(
        !key, DT_ERR_DATA,
        "%s: the record has an image: give the model or tower with --images, or rename the field if it is not an image",
        key);
    return DT_OK;
}

static int count_in(const char *text, size_t nbytes, const char *what)
{
    const size_t n = strlen(what);
    const char *end = text + nbytes, *at = text;
    int count = 0;
    while ((at = memmem(at, (size_t)(end - at), what, n))) count++, at += n;
    return count;
}

/* A caption drops the question and its placeholders. The question must have one per image, or none. */
static dt_err check_question(const dt_message *question, int n_images, const char *image_text)
{
    dt_placeholder_words words;
    const int found = count_in(question->text, question->nbytes, image_text);
    DT_CHECK(found == 0 || found == n_images, DT_ERR_DATA, "%s",
             dt_say_placeholders(&words, image_text, found, "the record", n_images));
    return DT_OK;
}

/* The rest of the question is dropped: it is one of many ways to ask for a caption. */
dt_err dt_render_caption(dt_parsed_record *r, const dt_rules *rules)
{
    const dt_messages *m = &r->messages[0];
    dt_text_side *side = &r->side[0];
    DT_CHECK(m->n == 2 && m->item[0].role == DT_ROLE_USER && m->item[1].role == DT_ROLE_ASSISTANT, DT_ERR_DATA,
             "expected a question with an image and its caption, found %d message%s", m->n, dt_plural(m->n));
    DT_TRY(dt_check_no_loss(m, 0, "the loss covers a whole caption"));
    DT_CHECK(m->item[1].n_thoughts == 0, DT_ERR_DATA, "message 1: %s: a caption cannot have thoughts; remove the field",
             m->item[1].thoughts_key);
    const int n_images = r->images.n ? r->images.n : m->images.n;
    DT_CHECK(n_images > 0, DT_ERR_DATA, "expected an image with a caption, found a record without an image");
    DT_TRY(check_question(&m->item[0], n_images, rules->image_text));
    side->wrap = &rules->wrap;
    side->eos = side->eos_target = true;
    for (int i = 0; i < n_images; i++)
        DT_TRY(dt_pieces_text(&side->pieces, rules->image_text, strlen(rules->image_text), false));
    return dt_pieces_text(&side->pieces, m->item[1].text, m->item[1].nbytes, true);
}

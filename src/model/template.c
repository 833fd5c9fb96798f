/* template.c - where special tokens go, and how much of a pair stays: pure functions. */
#include "model/tokenizer.h"

bool mst_template_add(mst_template *template, int32_t kind, int32_t id, int32_t type_id)
{
    if (template->count == MST_MAX_TEMPLATE)
        return false;
    template->pieces[template->count++] = (mst_template_piece){kind, id, type_id};
    template->num_special += kind == MST_PIECE_TOKEN;
    return true;
}

void mst_template_limits(const mst_template *template, int32_t *max_id, int32_t *max_type)
{
    *max_id = 0;
    *max_type = 0;
    for (int32_t i = 0; i < template->count; i++) {
        const mst_template_piece *piece = &template->pieces[i];
        if (piece->kind == MST_PIECE_TOKEN && piece->id > *max_id)
            *max_id = piece->id;
        if (piece->type_id > *max_type)
            *max_type = piece->type_id;
    }
}

void mst_template_bert(mst_template *single, mst_template *pair, int32_t cls, int32_t sep,
                       bool roberta)
{
    (void)mst_template_add(single, MST_PIECE_TOKEN, cls, 0);
    (void)mst_template_add(single, MST_PIECE_FIRST, 0, 0);
    (void)mst_template_add(single, MST_PIECE_TOKEN, sep, 0);
    *pair = *single;
    const int32_t second = roberta ? 0 : 1;
    if (roberta)
        (void)mst_template_add(pair, MST_PIECE_TOKEN, sep, 0);
    (void)mst_template_add(pair, MST_PIECE_SECOND, 0, second);
    (void)mst_template_add(pair, MST_PIECE_TOKEN, sep, second);
}

/*
 * The shorter text stays whole while it fits in half of the room; when both are longer, each gets
 * half, and the second (the first, when that is the longer one) the odd token.
 */
void mst_truncate_pair(int64_t first, int64_t second, int64_t room, int64_t *keep_first,
                       int64_t *keep_second)
{
    *keep_first = first;
    *keep_second = second;
    if (first + second <= room)
        return;
    const bool swapped = first > second;
    int64_t shorter = swapped ? second : first;
    int64_t longer = room - shorter;
    if (longer < shorter) {
        shorter = room / 2;
        longer = shorter + room % 2;
    }
    *keep_first = swapped ? longer : shorter;
    *keep_second = swapped ? shorter : longer;
}

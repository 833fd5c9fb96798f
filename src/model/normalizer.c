/*
 * normalizer.c - a list of operations over text, keeping for each byte the code point it came from.
 *
 * Plain ASCII goes through one table of 256 entries, a byte at a time. Everything else (code points
 * past ASCII, and control characters that are dropped) is gathered into runs, and each operation
 * goes over the run in turn. A run ends at a plain byte, which no operation ever joins with what
 * stands before it; when some operation composes, the plain byte before a run goes with the run.
 */
#include <string.h>

#include "model/tokenizer.h"

bool mst_normalizer_add(mst_normalizer *normalizer, mst_normalize_op op)
{
    if (normalizer->num_ops == MST_MAX_NORMALIZE_OPS)
        return false;
    normalizer->ops[normalizer->num_ops++] = op;
    return true;
}

void mst_normalizer_finish(mst_normalizer *normalizer)
{
    for (int byte = 0; byte < 256; byte++)
        normalizer->plain[byte] = byte < 0x80 ? (uint16_t)byte : MST_NOT_PLAIN;
    normalizer->composes = false;
    for (int32_t i = 0; i < normalizer->num_ops; i++) {
        mst_normalize_op op = normalizer->ops[i];
        normalizer->composes |= op == MST_OP_NFC || op == MST_OP_NFKC;
        for (int byte = 0; byte < 0x80; byte++) {
            uint16_t *plain = &normalizer->plain[byte];
            if (*plain == MST_NOT_PLAIN)
                continue;
            if (op == MST_OP_CLEAN && mst_is_dropped(*plain))
                *plain = MST_NOT_PLAIN;
            else if (op == MST_OP_CLEAN && mst_is_space(*plain))
                *plain = ' ';
            else if (op == MST_OP_LOWER && *plain >= 'A' && *plain <= 'Z')
                *plain |= 0x20;
        }
    }
}

static mstar_status reserve_chars(mst_chars *chars, int64_t count)
{
    return mst_grow((void **)&chars->items, &chars->capacity, count, sizeof *chars->items,
                    "code points of a text");
}

static mstar_status push_char(mst_chars *chars, uint32_t code, int32_t source, int32_t change)
{
    if (chars->count == chars->capacity)
        MST_TRY(reserve_chars(chars, chars->count + 1));
    chars->items[chars->count++] = (mst_char){code, source, change};
    return MSTAR_OK;
}

static void clean(mst_chars *run)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < run->count; i++) {
        uint32_t code = run->items[i].code;
        if (mst_is_dropped(code))
            continue;
        run->items[kept] = run->items[i];
        if (mst_is_space(code))
            run->items[kept].code = ' ';
        kept++;
    }
    run->count = kept;
}

static void strip(mst_chars *run, bool (*goes)(uint32_t))
{
    int64_t kept = 0;
    for (int64_t i = 0; i < run->count; i++) {
        if (!goes(run->items[i].code))
            run->items[kept++] = run->items[i];
    }
    run->count = kept;
}

/* Widens from the back, so that it needs no second list. */
static mstar_status space_ideographs(mst_chars *run)
{
    int64_t more = 0;
    for (int64_t i = 0; i < run->count; i++)
        more += mst_is_ideograph(run->items[i].code) ? 2 : 0;
    if (more == 0)
        return MSTAR_OK;
    MST_TRY(reserve_chars(run, run->count + more));
    int64_t to = run->count + more;
    for (int64_t i = run->count - 1; i >= 0; i--) {
        mst_char item = run->items[i];
        if (!mst_is_ideograph(item.code)) {
            run->items[--to] = item;
            continue;
        }
        run->items[--to] = (mst_char){' ', item.source, 0};
        run->items[--to] = item;
        run->items[--to] = (mst_char){' ', item.source, 0};
    }
    run->count += more;
    return MSTAR_OK;
}

/* Code points with one lower case first, in place; then, if there are any, those with more. */
static mstar_status lower(mst_chars *run)
{
    int64_t more = 0;
    uint32_t codes[MST_MAX_LOWER];
    for (int64_t i = 0; i < run->count; i++) {
        int32_t count = mst_to_lower(run->items[i].code, codes);
        more += count - 1;
        if (count == 1)
            run->items[i].code = codes[0];
    }
    if (more == 0)
        return MSTAR_OK;
    MST_TRY(reserve_chars(run, run->count + more));
    int64_t to = run->count + more;
    for (int64_t i = run->count - 1; i >= 0; i--) {
        int32_t source = run->items[i].source;
        for (int32_t j = mst_to_lower(run->items[i].code, codes) - 1; j >= 0; j--)
            run->items[--to] = (mst_char){codes[j], source, 0};
    }
    run->count += more;
    return MSTAR_OK;
}

/*
 * Stable order by combining class, which stands in `source` while a normal form is made. A few
 * marks are inserted one by one; many (only hostile text has them) are counted by class, so that
 * the work stays linear.
 */
static mstar_status sort_marks(mst_chars *list, int64_t start)
{
    const int64_t count = list->count - start;
    if (count < 2)
        return MSTAR_OK; /* the list may still be without memory */
    mst_char *marks = list->items + start;
    if (count <= 32) {
        for (int64_t i = 1; i < count; i++) {
            mst_char mark = marks[i];
            int64_t at = i;
            for (; at > 0 && marks[at - 1].source > mark.source; at--)
                marks[at] = marks[at - 1];
            marks[at] = mark;
        }
        return MSTAR_OK;
    }
    MST_TRY(reserve_chars(list, list->count + count));
    marks = list->items + start;
    mst_char *copy = marks + count;
    memcpy(copy, marks, (size_t)count * sizeof *copy);
    int64_t next[257] = {0};
    for (int64_t i = 0; i < count; i++)
        next[copy[i].source + 1]++;
    for (int i = 0; i < 256; i++)
        next[i + 1] += next[i];
    for (int64_t i = 0; i < count; i++)
        marks[next[copy[i].source]++] = copy[i];
    return MSTAR_OK;
}

/*
 * Decomposition into spare, in canonical order. change: 0 for the first code point of a
 * decomposition, 1 for each that was added after it. Sources are dealt out later, by position: a 0
 * takes the next code point of the run, a 1 shares the one before, whatever the order became. It
 * is how the tokenizers package counts, and offsets must agree with it.
 */
static mstar_status decompose(const mst_chars *run, bool compatibility, mst_chars *spare)
{
    spare->count = 0;
    int64_t marks = 0; /* where the present stretch of combining marks starts */
    for (int64_t i = 0; i < run->count; i++) {
        uint32_t codes[MST_MAX_DECOMPOSED];
        int32_t count = mst_decompose(run->items[i].code, compatibility, codes);
        for (int32_t j = 0; j < count; j++) {
            uint8_t class = mst_combining_class(codes[j]);
            if (class == 0) {
                MST_TRY(sort_marks(spare, marks));
                marks = spare->count + 1;
            }
            MST_TRY(push_char(spare, codes[j], class, j > 0));
        }
    }
    return sort_marks(spare, marks);
}

/*
 * Composition in place. A composite's change is the sum of what it was made of: each code point of
 * the run that went into it beyond the first counts -1.
 */
static void compose(mst_chars *list)
{
    int64_t kept = 0, base = -1;
    int32_t last_class = -1; /* of what stands between the base and here; -1 for nothing */
    for (int64_t i = 0; i < list->count; i++) {
        mst_char item = list->items[i];
        int32_t class = item.source;
        if (base >= 0 && last_class < class) {
            uint32_t composite = mst_compose(list->items[base].code, item.code);
            if (composite != 0) {
                list->items[base].code = composite;
                list->items[base].change += item.change - 1;
                continue;
            }
        }
        if (class == 0) {
            base = kept;
            last_class = -1;
        } else if (base >= 0) {
            last_class = class;
        }
        list->items[kept++] = item;
    }
    list->count = kept;
}

static void deal_sources(const mst_chars *run, mst_chars *list)
{
    int64_t next = 0;
    for (int64_t i = 0; i < list->count; i++) {
        mst_char *item = &list->items[i];
        int64_t from = item->change > 0 ? next - 1 : next;
        if (item->change <= 0)
            next += 1 - item->change;
        from = mst_max_i64(0, mst_min_i64(from, run->count - 1));
        item->source = run->items[from].source;
        item->change = 0;
    }
}

static bool may_change(const mst_chars *run)
{
    for (int64_t i = 0; i < run->count; i++) {
        uint32_t code = run->items[i].code;
        bool stays =
            code < 0xA0 || (code >= 0x3400 && code <= 0x4DBF) || (code >= 0x4E00 && code <= 0x9FFF);
        if (!stays)
            return true;
    }
    return false;
}

static mstar_status normal_form(mst_chars *run, mst_chars *spare, bool compatibility, bool joins)
{
    if (run->count == 0 || !may_change(run))
        return MSTAR_OK;
    MST_TRY(decompose(run, compatibility, spare));
    if (joins)
        compose(spare);
    deal_sources(run, spare);
    mst_chars swapped = *run;
    *run = *spare;
    *spare = swapped;
    return MSTAR_OK;
}

static mstar_status apply(mst_normalize_op op, mst_chars *run, mst_chars *spare)
{
    switch (op) {
    case MST_OP_CLEAN:
        clean(run);
        return MSTAR_OK;
    case MST_OP_IDEOGRAPH:
        return space_ideographs(run);
    case MST_OP_STRIP_MN:
        strip(run, mst_is_nonspacing);
        return MSTAR_OK;
    case MST_OP_STRIP_M:
        strip(run, mst_is_mark);
        return MSTAR_OK;
    case MST_OP_LOWER:
        return lower(run);
    case MST_OP_NFD:
        return normal_form(run, spare, false, false);
    case MST_OP_NFC:
        return normal_form(run, spare, false, true);
    case MST_OP_NFKD:
        return normal_form(run, spare, true, false);
    case MST_OP_NFKC:
        return normal_form(run, spare, true, true);
    }
    return MSTAR_OK;
}

static mstar_status reserve_normal(mst_normal *out, int64_t count)
{
    MST_TRY(mst_grow((void **)&out->bytes, &out->bytes_capacity, count, 1, "normalised text"));
    return mst_grow((void **)&out->source, &out->source_capacity, count, sizeof *out->source,
                    "offsets of normalised text");
}

static mstar_status write_run(const mst_chars *run, int64_t more, mst_normal *out)
{
    MST_TRY(reserve_normal(out, out->count + run->count * 4 + more));
    for (int64_t i = 0; i < run->count; i++) {
        size_t length = mst_utf8_encode(run->items[i].code, out->bytes + out->count);
        for (size_t j = 0; j < length; j++)
            out->source[out->count++] = run->items[i].source;
    }
    return MSTAR_OK;
}

mstar_status mst_normalize(const mst_normalizer *normalizer, const unsigned char *text,
                           size_t bytes, int32_t first, mst_chars *run, mst_chars *spare,
                           mst_normal *out)
{
    out->count = 0;
    MST_TRY(reserve_normal(out, (int64_t)bytes));
    const uint16_t *plain = normalizer->plain;
    size_t at = 0;
    while (at < bytes) {
        size_t from = at;
        uint16_t byte;
        while (at < bytes && (byte = plain[text[at]]) != MST_NOT_PLAIN) {
            out->bytes[out->count] = (unsigned char)byte;
            out->source[out->count++] = first++;
            at++;
        }
        if (at == bytes)
            break;
        if (normalizer->composes && at > from) {
            at--;
            first--;
            out->count--;
        }
        run->count = 0;
        do {
            MST_TRY(push_char(run, mst_utf8_decode(text + at), first++, 0));
            at += mst_utf8_length(text[at]);
        } while (at < bytes && plain[text[at]] == MST_NOT_PLAIN);
        for (int32_t i = 0; i < normalizer->num_ops; i++)
            MST_TRY(apply(normalizer->ops[i], run, spare));
        MST_TRY(write_run(run, (int64_t)(bytes - at), out));
    }
    return MSTAR_OK;
}

/*
 * added_tokens.c - tokens that are taken out of the text before the model sees it.
 *
 * The leftmost match wins, and of those the longest. Patterns lie sorted, so the ones that agree
 * with the text so far are a range of them, which each further byte narrows by two binary searches;
 * a table of first bytes skips most of the text.
 */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"

mstar_status mst_added_add(mst_added *added, const char *where, const mst_added_token *token)
{
    if (added->count >= 0xFFFF)
        return mst_fail(MSTAR_BAD_DATA, "%s: more than %d added tokens", where, 0xFFFF);
    MST_TRY(mst_grow((void **)&added->tokens, &added->capacity, added->count + 1,
                     sizeof *added->tokens, "added tokens"));
    mst_added_token copy = *token;
    void *content;
    MST_TRY(mst_alloc(token->bytes + 1, "added token", &content));
    memcpy(content, token->content, token->bytes);
    copy.content = content;
    copy.content[copy.bytes] = '\0';
    copy.pattern = NULL;
    copy.pattern_bytes = 0;
    added->tokens[added->count++] = copy;
    return MSTAR_OK;
}

int32_t mst_added_deal_id(const mst_added *added, const mst_vocab *vocab, const char *content,
                          size_t bytes)
{
    int32_t id = mst_vocab_find(vocab, content, bytes);
    if (id >= 0)
        return id;
    int64_t next = vocab->count;
    for (int64_t i = 0; i < added->count; i++) {
        const mst_added_token *other = &added->tokens[i];
        if (other->bytes == bytes && memcmp(other->content, content, bytes) == 0)
            return other->id;
        next = mst_max_i64(next, (int64_t)other->id + 1);
    }
    return (int32_t)next;
}

static int compare_bytes(const unsigned char *a, size_t a_bytes, const unsigned char *b,
                         size_t b_bytes)
{
    int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
    if (order != 0)
        return order;
    return a_bytes < b_bytes ? -1 : a_bytes > b_bytes;
}

/* Equal patterns: special tokens before others, then as they were given; the first one counts. */
static int compare_patterns(const void *a, const void *b)
{
    const mst_added_token *left = *(const mst_added_token *const *)a;
    const mst_added_token *right = *(const mst_added_token *const *)b;
    int order =
        compare_bytes(left->pattern, left->pattern_bytes, right->pattern, right->pattern_bytes);
    if (order != 0)
        return order;
    if (left->special != right->special)
        return left->special ? -1 : 1;
    return left < right ? -1 : left > right;
}

static bool same_flags(const mst_added_token *a, const mst_added_token *b)
{
    return a->single_word == b->single_word && a->lstrip == b->lstrip && a->rstrip == b->rstrip &&
           a->normalized == b->normalized && a->special == b->special;
}

static mstar_status fill_matcher(const mst_added *added, const char *where, bool normalized,
                                 mst_matcher *matcher)
{
    void *memory;
    MST_TRY(mst_alloc_array(added->count, sizeof *matcher->sorted, "added tokens", &memory));
    matcher->sorted = memory;
    for (int64_t i = 0; i < added->count; i++) {
        if (added->tokens[i].normalized == normalized)
            matcher->sorted[matcher->count++] = &added->tokens[i];
    }
    if (matcher->count == 0)
        return MSTAR_OK;
    qsort((void *)matcher->sorted, (size_t)matcher->count, sizeof *matcher->sorted,
          compare_patterns);
    int64_t kept = 0;
    for (int64_t i = 0; i < matcher->count; i++) {
        const mst_added_token *token = matcher->sorted[i];
        const mst_added_token *before = kept > 0 ? matcher->sorted[kept - 1] : NULL;
        if (before == NULL || compare_bytes(before->pattern, before->pattern_bytes, token->pattern,
                                            token->pattern_bytes) != 0) {
            matcher->sorted[kept++] = token;
            matcher->first[token->pattern[0]] = true;
        } else if (before->id == token->id && !same_flags(before, token)) {
            return mst_fail(MSTAR_BAD_DATA,
                            "%s: added token \"%.64s\" is there twice, with different flags", where,
                            token->content);
        }
    }
    matcher->count = kept;
    return MSTAR_OK;
}

static mstar_status fill_pattern(mst_added_token *token, const char *where,
                                 const mst_normalizer *normalizer, mst_chars *run, mst_chars *spare,
                                 mst_normal *normal)
{
    const unsigned char *pattern = (const unsigned char *)token->content;
    size_t bytes = token->bytes;
    if (token->normalized) {
        MST_TRY(mst_normalize(normalizer, pattern, bytes, 0, run, spare, normal));
        pattern = normal->bytes;
        bytes = (size_t)normal->count;
    }
    if (bytes == 0)
        return mst_fail(MSTAR_BAD_DATA, "%s: added token \"%.64s\" is empty once normalised", where,
                        token->content);
    void *memory;
    MST_TRY(mst_alloc(bytes, "added token", &memory));
    memcpy(memory, pattern, bytes);
    token->pattern = memory;
    token->pattern_bytes = bytes;
    return MSTAR_OK;
}

mstar_status mst_added_finish(mst_added *added, const char *where, const mst_normalizer *normalizer)
{
    mst_chars run = {0}, spare = {0};
    mst_normal normal = {0};
    mstar_status status = MSTAR_OK;
    for (int64_t i = 0; i < added->count; i++)
        MST_TRY_GOTO(fill_pattern(&added->tokens[i], where, normalizer, &run, &spare, &normal),
                     done);
    MST_TRY_GOTO(fill_matcher(added, where, false, &added->raw), done);
    MST_TRY_GOTO(fill_matcher(added, where, true, &added->normal), done);
done:
    mst_free(run.items);
    mst_free(spare.items);
    mst_free(normal.bytes);
    mst_free(normal.source);
    return status;
}

void mst_added_release(mst_added *added)
{
    for (int64_t i = 0; i < added->count; i++) {
        mst_free(added->tokens[i].content);
        mst_free(added->tokens[i].pattern);
    }
    mst_free(added->tokens);
    mst_free((void *)added->raw.sorted);
    mst_free((void *)added->normal.sorted);
    *added = (mst_added){0};
}

/* First of [low, high) whose byte at depth is at least `byte`; all are longer than depth. */
static int64_t lower_bound(const mst_matcher *matcher, int64_t low, int64_t high, size_t depth,
                           unsigned int byte)
{
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (matcher->sorted[middle]->pattern[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const mst_added_token *longest_at(const mst_matcher *matcher, const unsigned char *text,
                                         size_t bytes)
{
    const mst_added_token *best = NULL;
    int64_t low = 0, high = matcher->count;
    for (size_t depth = 0; low < high; depth++) {
        if (matcher->sorted[low]->pattern_bytes == depth)
            best = matcher->sorted[low++];
        if (depth == bytes)
            break;
        low = lower_bound(matcher, low, high, depth, text[depth]);
        high = lower_bound(matcher, low, high, depth, text[depth] + 1u);
    }
    return best;
}

void mst_split_start(mst_splitter *splitter, const mst_matcher *matcher, const unsigned char *text,
                     size_t bytes)
{
    *splitter = (mst_splitter){.matcher = matcher, .text = text, .bytes = bytes};
}

static bool stands_alone(const unsigned char *text, size_t bytes, size_t start, size_t end)
{
    size_t before;
    if (start > 0 && mst_is_word(mst_utf8_decode_before(text, start, &before)))
        return false;
    return end == bytes || !mst_is_word(mst_utf8_decode(text + end));
}

/* Widens a match over the spaces that its token takes along. */
static void take_spaces(const mst_splitter *splitter, mst_stretch *match)
{
    if (match->token->lstrip) {
        size_t before;
        while (match->start > splitter->done &&
               mst_is_space(mst_utf8_decode_before(splitter->text, match->start, &before)))
            match->start = before;
        if (match->start < splitter->done) /* the token before took this one's first space */
            match->start = splitter->done;
    }
    if (match->token->rstrip) {
        while (match->end < splitter->bytes &&
               mst_is_space(mst_utf8_decode(splitter->text + match->end)))
            match->end += mst_utf8_length(splitter->text[match->end]);
    }
}

bool mst_split_next(mst_splitter *splitter, mst_stretch *stretch)
{
    if (splitter->holds) {
        *stretch = splitter->held;
        splitter->holds = false;
        return true;
    }
    const unsigned char *text = splitter->text;
    size_t at = splitter->matcher->count > 0 ? splitter->search : splitter->bytes;
    while (at < splitter->bytes) {
        const mst_added_token *token =
            splitter->matcher->first[text[at]]
                ? longest_at(splitter->matcher, text + at, splitter->bytes - at)
                : NULL;
        if (token == NULL) {
            at++;
            continue;
        }
        mst_stretch match = {token, at, at + token->pattern_bytes};
        at = match.end;
        if (token->single_word && !stands_alone(text, splitter->bytes, match.start, match.end))
            continue;
        take_spaces(splitter, &match);
        splitter->search = at;
        *stretch = match;
        if (splitter->done < match.start) {
            *stretch = (mst_stretch){NULL, splitter->done, match.start};
            splitter->held = match;
            splitter->holds = true;
        }
        splitter->done = match.end;
        return true;
    }
    splitter->search = splitter->bytes;
    if (splitter->done >= splitter->bytes)
        return false;
    *stretch = (mst_stretch){NULL, splitter->done, splitter->bytes};
    splitter->done = splitter->bytes;
    return true;
}

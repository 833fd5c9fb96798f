/* support_fuzz_tokens.h - what must hold for the tokens of any text. */
#ifndef SUPPORT_FUZZ_TOKENS_H
#define SUPPORT_FUZZ_TOKENS_H

#include "mstar.h"

/*
 * Encodes a text alone and with a pair: ids are in the vocabulary, offsets inside the text and, but
 * for added tokens, in order; a cut text is the start or the end of the whole one.
 */
void fuzz_check_tokens(const mstar_tokenizer *tokenizer, const mstar_text *text,
                       const mstar_text *pair);

#endif

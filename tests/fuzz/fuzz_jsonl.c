/*
 * fuzz_jsonl.c - what the program reads from files and pipes, as lines and as JSON objects: every
 * text lies in its chunk, and nothing is lost between chunks or short reads.
 *
 * programs/input.c is linked alone; what it wants from the rest of the program is here. The first
 * byte chooses the format, the limits of a chunk and the length of a read.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "input.h"
#include "options.h"
#include "support_fuzz.h"

int cli_fail(int code, const char *format, ...)
{
    FUZZ_CHECK(format[0] != '\0');
    return code;
}

int cli_fail_memory(const char *what, size_t bytes)
{
    (void)what;
    (void)bytes;
    return CLI_FAILED;
}

void cli_note(const char *format, ...)
{
    (void)format;
}

int cli_signal_pending(void)
{
    return 0;
}

int cli_wait_readable(int fd, bool block)
{
    (void)fd;
    (void)block;
    return CLI_WAIT_READY;
}

/* Texts and their bytes, whatever the chunks; -1 when the input was refused. */
static int64_t read_all(int format, int64_t max_texts, int64_t *text_bytes)
{
    cli_input input;
    cli_chunk chunk = {0};
    int64_t texts = 0;
    const cli_chunk_limits limits = {.max_texts = max_texts,
                                     .max_bytes = 1 << 20,
                                     .max_tokens = INT64_MAX,
                                     .max_text_tokens = 512};
    FUZZ_CHECK(lseek(STDIN_FILENO, 0, SEEK_SET) == 0);
    FUZZ_CHECK(cli_input_open(&input, NULL, format) == CLI_OK);
    *text_bytes = 0;
    for (;;) {
        int code = cli_input_read(&input, &limits, &chunk);
        if (code != CLI_OK)
            texts = -1;
        if (code != CLI_OK || chunk.count == 0)
            break;
        FUZZ_CHECK(chunk.count <= max_texts && chunk.first_index == texts);
        for (int64_t i = 0; i < chunk.count; i++) {
            const cli_chunk_item *item = &chunk.items[i];
            FUZZ_CHECK(item->offset + item->bytes <= chunk.used);
            FUZZ_CHECK(item->id_bytes == 0 || item->id_offset + item->id_bytes <= chunk.used);
            FUZZ_CHECK(chunk.texts[i].bytes == item->bytes);
            FUZZ_CHECK(i == 0 || item->line > chunk.items[i - 1].line);
            *text_bytes += (int64_t)item->bytes;
        }
        texts += chunk.count;
        FUZZ_CHECK(input.texts == texts);
    }
    cli_chunk_release(&chunk);
    cli_input_close(&input);
    return texts;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int file = -1;
    if (file < 0) {
        file = fuzz_open_file("input");
        FUZZ_CHECK(dup2(file, STDIN_FILENO) == STDIN_FILENO);
    }
    fuzz_input input = {data, bytes};
    uint8_t choice = fuzz_byte(&input);
    FUZZ_CHECK(ftruncate(file, 0) == 0);
    FUZZ_CHECK(pwrite(file, input.data, input.left, 0) == (ssize_t)input.left);
    int format = choice & 1 ? CLI_INPUT_JSONL : CLI_INPUT_LINES;
    int64_t few_bytes, many_bytes;
    int64_t many = read_all(format, 1000000, &many_bytes);
    int64_t few = read_all(format, 1 + (choice >> 1), &few_bytes);
    FUZZ_CHECK(few == many && (few < 0 || few_bytes == many_bytes));
    return 0;
}

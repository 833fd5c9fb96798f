/*
 * input.c - texts from a file or standard input, in chunks.
 *
 * Memory is bounded by the chunk's limits and the longest line, which is bounded too.
 */
#include "input.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "options.h"

enum { READ_BYTES = 1 << 16, MAX_LINE_BYTES = 64 << 20 };

/* ---- opening --------------------------------------------------------------------------------- */

int cli_input_open(cli_input *input, const char *path, int format)
{
    memset(input, 0, sizeof *input);
    input->fd = -1;
    input->format = format;
    input->total_bytes = -1;
    bool standard = path == NULL || strcmp(path, "-") == 0;
    const char *label = standard ? "standard input" : path;
    input->label = strdup(label);
    if (input->label == NULL)
        return cli_fail_memory("a file name", strlen(label));
    if (standard) {
        input->fd = STDIN_FILENO;
    } else {
        /* O_NONBLOCK: opening a FIFO would wait for its writer where no signal can end it; so the
           wait is left to take_line */
        input->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (input->fd < 0)
            return cli_fail(CLI_NO_INPUT, "cannot open %s: %s", path, strerror(errno));
        input->own_fd = true;
    }
    struct stat about;
    if (fstat(input->fd, &about) == 0) {
        if (S_ISDIR(about.st_mode))
            return cli_fail(CLI_NO_INPUT, "cannot read %s: it is a folder", input->label);
        input->regular = S_ISREG(about.st_mode);
        if (input->regular)
            input->total_bytes = (int64_t)about.st_size;
    }
    if (standard && isatty(input->fd))
        cli_note("reading texts from the terminal, one a line; Ctrl-D ends them");
    return CLI_OK;
}

void cli_input_close(cli_input *input)
{
    if (input->own_fd)
        (void)close(input->fd);
    input->own_fd = false;
    free(input->label);
    free(input->buffer);
    input->label = NULL;
    input->buffer = NULL;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static int make_room(cli_input *input)
{
    if (input->start > 0) {
        memmove(input->buffer, input->buffer + input->start, input->end - input->start);
        input->end -= input->start;
        input->start = 0;
    }
    if (input->capacity - input->end >= READ_BYTES)
        return CLI_OK;
    size_t want = input->capacity * 2 + READ_BYTES;
    char *grown = realloc(input->buffer, want);
    if (grown == NULL)
        return cli_fail_memory("a line of the input", want);
    input->buffer = grown;
    input->capacity = want;
    return CLI_OK;
}

/* More bytes into the buffer; at the end of the input, `ended`. */
static int read_more(cli_input *input)
{
    int code = make_room(input);
    if (code != CLI_OK)
        return code;
    ssize_t done;
    do {
        done = read(input->fd, input->buffer + input->end, input->capacity - input->end);
    } while (done < 0 && errno == EINTR);
    if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return CLI_OK; /* another reader was faster */
    if (done < 0)
        return cli_fail(CLI_IO_FAILED, "cannot read %s: %s", input->label, strerror(errno));
    if (done == 0)
        input->ended = true;
    input->end += (size_t)done;
    return CLI_OK;
}

typedef enum next { NEXT_LINE, NEXT_END, NEXT_NOT_NOW, NEXT_STOPPED, NEXT_FAILED } next;

/* The next line, without its end; valid until the next call. */
static next take_line(cli_input *input, bool wait, char **line, size_t *bytes, int *code)
{
    size_t searched = 0;
    for (;;) {
        size_t held = input->end - input->start;
        char *from = input->buffer != NULL ? input->buffer + input->start : NULL;
        char *end = held > searched ? memchr(from + searched, '\n', held - searched) : NULL;
        if (end == NULL && input->ended && held > 0)
            end = from + held;
        if (end != NULL) {
            size_t taken = (size_t)(end - from);
            input->start += taken < held ? taken + 1 : taken;
            input->bytes_taken += taken < held ? taken + 1 : taken;
            input->line++;
            *line = from;
            *bytes = taken > 0 && from[taken - 1] == '\r' ? taken - 1 : taken;
            if (input->line == 1 && *bytes >= 3 && memcmp(from, "\xef\xbb\xbf", 3) == 0) {
                *line += 3;
                *bytes -= 3;
            }
            return NEXT_LINE;
        }
        if (input->ended)
            return NEXT_END;
        if (held > MAX_LINE_BYTES) {
            *code = cli_fail(CLI_FAILED, "%s:%lld:1: the line is longer than %d bytes",
                             input->label, (long long)input->line + 1, MAX_LINE_BYTES);
            return NEXT_FAILED;
        }
        searched = held;
        if (!input->regular) {
            int ready = cli_wait_readable(input->fd, wait);
            if (ready == CLI_WAIT_INTERRUPTED)
                return NEXT_STOPPED;
            if (ready == CLI_WAIT_NOTHING)
                return NEXT_NOT_NOW;
        } else if (cli_signal_pending() != 0) {
            return NEXT_STOPPED;
        }
        *code = read_more(input);
        if (*code != CLI_OK)
            return NEXT_FAILED;
    }
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static int chunk_append(cli_chunk *chunk, const char *data, size_t bytes)
{
    if (bytes > chunk->capacity - chunk->used) {
        size_t want = (chunk->used + bytes) * 2 + 4096;
        char *grown = realloc(chunk->bytes, want);
        if (grown == NULL)
            return cli_fail_memory("the texts", want);
        chunk->bytes = grown;
        chunk->capacity = want;
    }
    if (bytes > 0)
        memcpy(chunk->bytes + chunk->used, data, bytes);
    chunk->used += bytes;
    return CLI_OK;
}

static int chunk_grow_items(cli_chunk *chunk)
{
    if (chunk->count < chunk->item_capacity)
        return CLI_OK;
    int64_t want = chunk->item_capacity * 2 + 64;
    cli_chunk_item *items = realloc(chunk->items, (size_t)want * sizeof *items);
    if (items == NULL)
        return cli_fail_memory("the texts", (size_t)want * sizeof *items);
    chunk->items = items;
    mstar_text *texts = realloc(chunk->texts, (size_t)want * sizeof *texts);
    if (texts == NULL)
        return cli_fail_memory("the texts", (size_t)want * sizeof *texts);
    chunk->texts = texts;
    chunk->item_capacity = want;
    return CLI_OK;
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r' && text[i] != '\n')
            return false;
    }
    return true;
}

static int add_text(cli_chunk *chunk, int64_t line, const char *text, size_t bytes)
{
    int code = chunk_grow_items(chunk);
    if (code != CLI_OK)
        return code;
    cli_chunk_item *item = &chunk->items[chunk->count];
    *item = (cli_chunk_item){
        .line = line, .offset = chunk->used, .bytes = bytes, .empty = is_blank(text, bytes)};
    code = chunk_append(chunk, text, bytes);
    if (code == CLI_OK)
        chunk->count++;
    return code;
}

/* ---- jsonl ----------------------------------------------------------------------------------- */

static int fail_line(const cli_input *input, int column, const char *what)
{
    return cli_fail(CLI_FAILED, "%s:%lld:%d: %s", input->label, (long long)input->line, column,
                    what);
}

/*
 * An integer outside 64 bits (a hash, say) is not malformed, but jansson refuses it. The second try
 * reads every integer as a double; of those only "id" is used, and only where it is exact.
 */
static json_t *parse_line(const char *line, size_t bytes, bool *as_reals, json_error_t *error)
{
    size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY;
    json_t *root = json_loadb(line, bytes, flags, error);
    *as_reals = false;
    if (root == NULL && json_error_code(error) == json_error_numeric_overflow) {
        *as_reals = true;
        root = json_loadb(line, bytes, flags | JSON_DECODE_INT_AS_REAL, error);
    }
    return root;
}

static int append_id(const cli_input *input, cli_chunk *chunk, const json_t *id, bool as_reals)
{
    cli_chunk_item *item = &chunk->items[chunk->count - 1];
    item->id_offset = chunk->used;
    char *dumped = NULL;
    if (as_reals && json_is_real(id) && floor(json_real_value(id)) == json_real_value(id)) {
        if (fabs(json_real_value(id)) > 9007199254740992.0)
            return fail_line(input, 1, "the integer in field \"id\" does not fit into 64 bits");
        json_t *integer = json_integer((json_int_t)json_real_value(id));
        dumped = integer != NULL ? json_dumps(integer, JSON_ENCODE_ANY) : NULL;
        json_decref(integer);
    } else {
        dumped = json_dumps(id, JSON_ENCODE_ANY | JSON_COMPACT);
    }
    if (dumped == NULL)
        return cli_fail_memory("an id", 0);
    int code = chunk_append(chunk, dumped, strlen(dumped));
    item->id_bytes = strlen(dumped);
    free(dumped);
    return code;
}

static int add_json(cli_input *input, cli_chunk *chunk, const char *line, size_t bytes)
{
    json_error_t error;
    bool as_reals;
    json_t *root = parse_line(line, bytes, &as_reals, &error);
    if (root == NULL)
        return fail_line(input, error.column > 0 ? error.column : 1, error.text);
    const json_t *text = json_object_get(root, "text");
    const json_t *id = json_object_get(root, "id");
    int code;
    if (!json_is_object(root))
        code = fail_line(input, 1, "an object with a field \"text\" is wanted");
    else if (text == NULL)
        code = fail_line(input, 1, "the object has no field \"text\"");
    else if (!json_is_string(text))
        code = fail_line(input, 1, "field \"text\" is not a string");
    else
        code = add_text(chunk, input->line, json_string_value(text), json_string_length(text));
    if (code == CLI_OK && id != NULL)
        code = append_id(input, chunk, id, as_reals);
    json_decref(root);
    return code;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_full(const cli_chunk *chunk, const cli_chunk_limits *limits, int64_t tokens)
{
    return chunk->count >= limits->max_texts || chunk->used >= limits->max_bytes ||
           tokens >= limits->max_tokens;
}

int cli_input_read(cli_input *input, const cli_chunk_limits *limits, cli_chunk *chunk)
{
    chunk->count = 0;
    chunk->used = 0;
    chunk->first_index = input->texts;
    int64_t tokens = 0;
    while (!is_full(chunk, limits, tokens)) {
        char *line = NULL;
        size_t bytes = 0;
        int code = CLI_OK;
        next what = take_line(input, chunk->count == 0, &line, &bytes, &code);
        if (what == NEXT_FAILED)
            return code;
        if (what == NEXT_STOPPED)
            chunk->count = 0;
        if (what != NEXT_LINE)
            break;
        if (input->format == CLI_INPUT_LINES)
            code = add_text(chunk, input->line, line, bytes);
        else if (!is_blank(line, bytes))
            code = add_json(input, chunk, line, bytes);
        else
            continue;
        if (code != CLI_OK)
            return code;
        /* about four bytes a token, and two special tokens */
        int64_t guess = (int64_t)(chunk->items[chunk->count - 1].bytes / 4) + 2;
        tokens += guess < limits->max_text_tokens ? guess : limits->max_text_tokens;
    }
    for (int64_t i = 0; i < chunk->count; i++) {
        const cli_chunk_item *item = &chunk->items[i];
        chunk->texts[i].data = item->bytes > 0 ? chunk->bytes + item->offset : "";
        chunk->texts[i].bytes = item->bytes;
    }
    input->texts += chunk->count;
    return CLI_OK;
}

void cli_chunk_release(cli_chunk *chunk)
{
    free(chunk->bytes);
    free(chunk->items);
    free(chunk->texts);
    memset(chunk, 0, sizeof *chunk);
}

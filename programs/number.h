/* number.h - floats as text that reads back to the same bits. */
#ifndef CLI_NUMBER_H
#define CLI_NUMBER_H

#include <stddef.h>

enum { CLI_F32_CHARS = 32 };

/*
 * Writes a finite value with the fewest digits (at most 9) that give the same float back, read as
 * a float or as a double that is then rounded; always with a '.' or an exponent, so that readers
 * take it for a real number. Not terminated; returns the characters written.
 */
size_t cli_format_f32(float value, char *text);

#endif

/*
 * support_random.h - random numbers for tests: the same on every machine, and one seed a case, so
 * that a failure is repeated from the number it prints.
 */
#ifndef SUPPORT_RANDOM_H
#define SUPPORT_RANDOM_H

#include <math.h>
#include <stdint.h>

typedef struct test_random {
    uint64_t state;
} test_random;

/* splitmix64 (Steele, Lea and Flood 2014) */
static inline uint64_t test_random_bits(test_random *random)
{
    uint64_t z = (random->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* low..high, both included */
static inline int64_t test_random_between(test_random *random, int64_t low, int64_t high)
{
    return low + (int64_t)(test_random_bits(random) % (uint64_t)(high - low + 1));
}

/* (0, 1) */
static inline double test_random_unit(test_random *random)
{
    return ((double)(test_random_bits(random) >> 11) + 0.5) * 0x1p-53;
}

static inline double test_random_normal(test_random *random)
{
    double radius = sqrt(-2.0 * log(test_random_unit(random)));
    return radius * cos(6.283185307179586 * test_random_unit(random));
}

#endif

/*
 * support_fork.h - may a test start threads in a forked child? The thread sanitizer cannot follow
 * them: it takes a reused stack for a thread that is alive. Such tests run in the other builds.
 */
#ifndef SUPPORT_FORK_H
#define SUPPORT_FORK_H

#if defined(__SANITIZE_THREAD__)
#define THREADS_AFTER_FORK 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREADS_AFTER_FORK 0
#endif
#endif
#ifndef THREADS_AFTER_FORK
#define THREADS_AFTER_FORK 1
#endif

#endif

/* fuzz: what the fuzz targets share.
 *
 * A target is one function of bytes that nobody trusts: what a peer or a stranger wrote into a socket, a shared
 * segment or a file. It must come back, whatever they are. Built twice: by clang with libFuzzer (fuzz_test.sh), which
 * invents bytes, and with replay.c under the ordinary build, which runs the stored ones (corpus/<target>/, made by
 * seeds.py).
 *
 * Targets take in the source file that they are about, because what reads is static there.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* What is left of an input. */
struct fuzz_input {
    const uint8_t *data;
    size_t bytes;
};

/* 0 at the end. */
static inline uint8_t fuzz_byte(struct fuzz_input *input)
{
    if (input->bytes == 0) return 0;
    input->bytes--;
    return *input->data++;
}

/* The next `most` bytes, or what there is; zeros behind. */
static inline void fuzz_take(void *into, size_t most, struct fuzz_input *input)
{
    size_t bytes = input->bytes < most ? input->bytes : most;
    memset(into, 0, most);
    if (bytes > 0) memcpy(into, input->data, bytes);
    input->data += bytes;
    input->bytes -= bytes;
}

/* A piece of a stream: two bytes say how long, then so many of the input's go into the socket. */
static inline void fuzz_write_piece(int fd, struct fuzz_input *input)
{
    size_t bytes = (size_t)fuzz_byte(input) | (size_t)fuzz_byte(input) << 8;
    if (bytes > input->bytes) bytes = input->bytes;
    ssize_t written = send(fd, input->data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)written; /* a full or closed socket loses it, as a network would */
    input->data += bytes;
    input->bytes -= bytes;
}

/* Both ends non-blocking. */
static inline void fuzz_connect(int *mine, int *theirs)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) abort();
    *mine = pair[0];
    *theirs = pair[1];
}

/* A promise of the code under test: broken, it is a finding. */
#define FUZZ_EXPECT(condition)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

#endif

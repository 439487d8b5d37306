/* tokens_fuzz: a file of training data: text, or a shard with either magic number, true or not.
 *
 * input   vocab, then the file
 */
#include <stdio.h>
#include <sys/mman.h>

#include "model/tokens.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    int vocab = fuzz_byte(&input) * 100;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || write(fd, input.data, input.bytes) != (ssize_t)input.bytes) abort();
    struct tokens_config config = {
        .pattern = path, .vocab = vocab, .batch = 2, .t = 4, .rank = 0, .nranks = 2, .seed = 1};
    struct tokens *tokens = NULL;
    int32_t inputs[8], targets[8];
    if (tokens_open(&tokens, &config) == STATUS_OK) {
        for (uint64_t i = 0; i < 3; i++) tokens_train_batch(inputs, targets, i, tokens);
        for (size_t i = 0; i < tokens_validation_batches(tokens) && i < 3; i++)
            tokens_validation_batch(inputs, targets, i, tokens);
        for (int i = 0; i < 8; i++)
            FUZZ_EXPECT(inputs[i] >= 0 && (vocab == 0 || inputs[i] < vocab) && targets[i] >= -1);
    } else {
        FUZZ_EXPECT(tokens == NULL);
    }
    tokens_close(tokens);
    close(fd);
    return 0;
}

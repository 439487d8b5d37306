/* model/tokens: case T7, a shard of 1.2e9 tokens (2.4 GB, sparse) whose last tokens are known.
 * ctest: timeout=300 labels=long
 */
#include "model/tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness/harness.h"

#define NTOK UINT32_C(1200000000)
#define TAIL 1000 /* known tokens at the end: 1, 2, … */

static int write_sparse(char *name)
{
    int fd = mkstemp(name);
    if (fd < 0) return -1;
    uint32_t header[256] = {20240520, 1, NTOK};
    uint16_t tail[TAIL];
    for (int i = 0; i < TAIL; i++) tail[i] = (uint16_t)(i + 1);
    off_t end = (off_t)sizeof header + (off_t)NTOK * 2;
    bool written = write(fd, header, sizeof header) == (ssize_t)sizeof header &&
                   ftruncate(fd, end) == 0 &&
                   pwrite(fd, tail, sizeof tail, end - (off_t)sizeof tail) == (ssize_t)sizeof tail;
    close(fd);
    return written ? 0 : -1;
}

int main(void)
{
    char name[] = "/tmp/ringzero-tokens-large-XXXXXX";
    if (write_sparse(name) != 0) {
        unlink(name);
        return test_skip("/tmp cannot hold a sparse file of 2.4 GB");
    }
    struct tokens_config config = {.pattern = name,
        .validation = name,
        .vocab = TAIL + 1,
        .batch = 1,
        .t = 99,
        .nranks = 1,
        .seed = 1};
    struct tokens *tokens = NULL;
    if (CHECK_OK(tokens_open(&tokens, &config))) {
        size_t windows = tokens_windows(tokens, SPLIT_VALIDATION);
        CHECK(windows == (NTOK - 1) / 99);
        int32_t inputs[99], targets[99];
        for (size_t w = windows - 11; w < windows; w++) {
            tokens_validation_batch(inputs, targets, w, tokens);
            for (int64_t i = 0; i < 99; i++) {
                int64_t known = (int64_t)w * 99 + i - (int64_t)(NTOK - TAIL) + 1;
                CHECK(inputs[i] == (known > 0 ? known : 0));
                CHECK(targets[i] == (known + 1 > 0 ? known + 1 : 0));
            }
        }
        uint64_t far = tokens_batches(tokens) -
                       1; /* the order of 12 million windows, without a list of them */
        tokens_train_batch(inputs, targets, far, tokens);
        CHECK(inputs[1] >= 0 && inputs[1] <= TAIL);
    }
    tokens_close(tokens);

    config.vocab = TAIL; /* the last token of all is then one too large */
    CHECK_STATUS(tokens_open(&tokens, &config), STATUS_DATA);
    CHECK_MSG(strstr(status_text(), "token 1199999999 is id 1000") != NULL, "%s", status_text());
    unlink(name);
    return test_result();
}

/* choices_fuzz: a file of questions with endings.
 *
 * input   vocab, T, B, then the file
 */
#include <stdio.h>
#include <sys/mman.h>

#include "model/choices.h"
#include "tests/fuzz/fuzz.h"

#define MOST 256

static void read_all(int vocab, int t, int batch, const struct choices *choices)
{
    static int32_t inputs[MOST * MOST], targets[MOST * MOST];
    struct choices_score score = {0};
    double losses[MOST + CHOICES_MOST_ENDINGS] = {0};
    for (size_t b = 0; b <= choices_blocks(batch, choices); b++) {
        for (int p = 0; p < choices_passes(batch, choices); p++) {
            struct choices_pass pass = choices_pass(b, p, batch, choices);
            FUZZ_EXPECT(pass.rows <= batch && pass.t >= 1 && pass.t <= t);
            choices_fill(inputs, targets, &pass, choices);
            for (int i = 0; i < pass.rows * pass.t; i++)
                FUZZ_EXPECT(inputs[i] >= 0 && inputs[i] < vocab && targets[i] >= -1 && targets[i] < vocab);
        }
        choices_judge_block(&score, losses, b, batch, choices);
    }
    FUZZ_EXPECT(score.by_mean <= choices_count(choices));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    int vocab = fuzz_byte(&input) * 100 + 1, t = fuzz_byte(&input) + 1, batch = fuzz_byte(&input) + 1;
    struct choices *choices;
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || write(fd, input.data, input.bytes) != (ssize_t)input.bytes) abort();
    if (choices_open(&choices, path, vocab, t) == STATUS_OK) read_all(vocab, t, batch, choices);
    else FUZZ_EXPECT(choices == NULL);
    choices_close(choices);
    close(fd);
    return 0;
}

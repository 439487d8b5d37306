/* weights_fuzz: a file of weights, safetensors or llm.c's.
 *
 * input   kind, then the file
 */
#include <stdio.h>
#include <sys/mman.h>

#include "model/weights.h"
#include "tests/fuzz/fuzz.h"

#define MOST_ELEMENTS ((size_t)1 << 20)

static void read_all(struct weights *weights)
{
    struct params params;
    if (model_block_elements(&weights->config) * weights->config.layers > MOST_ELEMENTS) return;
    if ((double)weights->config.vocab * weights->config.channels > MOST_ELEMENTS) return;
    if (params_make(&params, &weights->config) != STATUS_OK) return;
    float *values = malloc((params.elements + 1) * sizeof *values);
    if (values == NULL) abort();
    for (int i = 0; i < params.param_count; i++)
        if (weights_read(values, &params.param[i], weights) != STATUS_OK) break;
    free(values);
    params_free(&params);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    const struct weights_format *format = fuzz_byte(&input) % 2 == 0 ? &weights_safetensors : &weights_llmc;
    struct weights *weights;
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || write(fd, input.data, input.bytes) != (ssize_t)input.bytes) abort();
    if (weights_open(&weights, path, format, 0) == STATUS_OK) read_all(weights);
    else FUZZ_EXPECT(weights == NULL);
    weights_close(weights);
    close(fd);
    return 0;
}

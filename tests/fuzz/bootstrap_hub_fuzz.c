/* bootstrap_hub_fuzz: frames of members, as rank 0's hub reads them, while it gathers, and after a failure while it hears who goes on.
 *
 * input   { rank of the sender, length, bytes }…
 */
#include "verbs/bootstrap_service.c"
#include "verbs/bootstrap_shrink.c"

#include "tests/fuzz/bootstrap_fixture.h"

#define BIT(type) (1u << (type))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    struct fixture fixture;
    fixture_open(&fixture, 0, BIT(FRAME_GATHER) | BIT(FRAME_POST) | BIT(FRAME_ABORT) | BIT(FRAME_BYE) | BIT(FRAME_SHRINK));
    struct bootstrap *b = &fixture.bootstrap;

    /* Rank 0 is in its first all-gather, of 8 bytes each, where the input wants it. */
    unsigned char blobs[FIXTURE_RANKS * 8] = {0};
    if (fuzz_byte(&input) & 1) {
        b->call = (struct gather_call){.sequence = 1, .blobs = blobs, .bytes = 8};
        FUZZ_EXPECT(hub_contribute(b, 0, 1, blobs, 8));
    }
    while (input.bytes > 0) {
        int from = 1 + fuzz_byte(&input) % (FIXTURE_RANKS - 1);
        fuzz_write_piece(fixture.peers[from], &input);
        if (fixture.links[from].fd < 0) continue;
        if (b->failed && from % 2 == 0) hear_survivor(&fixture.links[from]);
        else read_link(b, &fixture.links[from]);
    }
    for (int r = 1; r < FIXTURE_RANKS; r++) {
        FUZZ_EXPECT(!fixture.links[r].shrinks || (b->failed && fixture.links[r].host[HOST_TEXT_BYTES - 1] == 0));
        fixture_hang_up(&fixture, r);
        for (int i = 0; i < 1000 && fixture.links[r].fd >= 0; i++) read_link(b, &fixture.links[r]);
    }
    FUZZ_EXPECT(b->failed || b->left_count > 0 || bytes == 0 || b->all_left);
    fixture_check_failure(&fixture);
    fixture_close(&fixture);
    return 0;
}

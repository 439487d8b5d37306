/* Boards of three ranks: what one writes both others read, in place and in order; there is room when
 * the slowest of them has read, not before; nothing is held after close. ctest: timeout=20
 */
#include "ring/board.h"

#include <string.h>

#include "tests/harness/harness.h"

#define RANKS      3
#define LINE_BYTES ((size_t)128)

struct member {
    struct region_book *book;
    struct board *board;
};

static struct device *device;

static bool open_members(struct member *members)
{
    for (int r = 0; r < RANKS; r++) {
        if (!CHECK_OK(region_book_open(&members[r].book))) return false;
        if (!CHECK_OK(board_open(&members[r].board, LINE_BYTES, members[r].book, device))) return false;
        if (!CHECK(board_reference(members[r].board) != 0)) return false;
    }
    for (int r = 0; r < RANKS; r++)
        for (int other = 0; other < RANKS; other++) {
            struct region_offer offer = region_book_offer(members[other].book);
            if (r != other)
                CHECK_OK(board_attach(members[r].board, other, r,
                    board_reference(members[other].board), &offer));
        }
    return true;
}

static void say(struct board *board, uint64_t word)
{
    CHECK(board_room(board));
    memcpy(lines_entry(board_own(board))->data, &word, sizeof word);
    lines_post(board_own(board), sizeof word, word + 1000);
}

static bool hears(uint64_t word, struct board *board, int from)
{
    struct lines *lines = board_read(board, from);
    if (!lines_ready(lines)) return false;
    const struct line_entry *entry = lines_entry(lines);
    uint64_t said;
    memcpy(&said, entry->data, sizeof said);
    CHECK(said == word && entry->tag == word + 1000 && entry->bytes == sizeof word);
    lines_free(lines);
    return true;
}

static void check_room(struct member *members)
{
    struct board *writer = members[0].board;
    CHECK(!hears(0, members[1].board, 0));
    for (uint64_t i = 0; i < LINES_COUNT; i++) say(writer, i);
    CHECK(!board_room(writer));
    for (uint64_t i = 0; i < LINES_COUNT; i++) CHECK(hears(i, members[1].board, 0));
    CHECK(!hears(LINES_COUNT, members[1].board, 0));
    CHECK(!board_room(writer) && board_slowest(writer) == 2);
    for (uint64_t i = 0; i < 5; i++) CHECK(hears(i, members[2].board, 0));
    for (uint64_t i = 0; i < 5; i++) say(writer, LINES_COUNT + i);
    CHECK(!board_room(writer) && board_slowest(writer) == 2);
    for (uint64_t i = 5; i < LINES_COUNT + 5; i++) CHECK(hears(i, members[2].board, 0));
    CHECK(!board_room(writer) || board_slowest(writer) == 1);
    for (uint64_t i = LINES_COUNT; i < LINES_COUNT + 5; i++) CHECK(hears(i, members[1].board, 0));
    CHECK(board_room(writer));
    for (uint64_t i = 0; i < 3 * LINES_COUNT; i++) { /* the others' boards are as fresh as ever */
        say(members[2].board, i);
        CHECK(hears(i, members[0].board, 2) && hears(i, members[1].board, 2));
    }
}

int main(void)
{
    struct member members[RANKS] = {0};
    CHECK_OK(device_open(&device, "host"));
    if (open_members(members)) check_room(members);
    for (int r = 0; r < RANKS; r++) {
        board_close(members[r].board);
        region_book_close(members[r].book);
    }
    board_close(NULL);
    CHECK(board_reference(NULL) == 0);
    CHECK(memory_account_read(device).now[MEMORY_COMMUNICATION] == 0);
    device_close(device);
    return test_result();
}

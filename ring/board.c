/* board: see board.h. */
#include "ring/board.h"

#include <assert.h>
#include <stdlib.h>

#define ENTRIES_AT ((size_t)BOARD_MOST_RANKS * sizeof(uint64_t))
_Static_assert(ENTRIES_AT % 64 == 0, "entries begin at a cache line");

struct board {
    struct region_book *book;
    struct device *device;
    unsigned char *memory;
    size_t bytes;
    uint64_t reference;
    struct lines own;                        /* its head is not used: there are many */
    struct lines read[BOARD_MOST_RANKS];     /* entries NULL: not attached */
    struct region_view *views[BOARD_MOST_RANKS];
    const uint64_t *heads[BOARD_MOST_RANKS]; /* in each rank's region: how much of this board it has read */
};

enum status board_open(
    struct board **out, size_t line_bytes, struct region_book *book, struct device *device)
{
    *out = NULL;
    size_t bytes = ENTRIES_AT + LINES_COUNT * line_bytes;
    TRY(memory_reserve(device, MEMORY_COMMUNICATION, bytes));
    unsigned char *memory = region_alloc_board(bytes, book);
    struct board *board = memory != NULL ? calloc(1, sizeof *board) : NULL;
    if (board == NULL) {
        if (memory != NULL) region_free(memory, book);
        memory_count(device, MEMORY_COMMUNICATION, -(int64_t)bytes);
        return memory == NULL ? STATUS_OK : FAIL(STATUS_SYSTEM, "no memory for a board");
    }
    *board = (struct board){.book = book, .device = device, .memory = memory, .bytes = bytes};
    board->reference = region_reference(memory, bytes, book);
    board->own = (struct lines){.entries = memory + ENTRIES_AT, .entry_bytes = line_bytes};
    *out = board;
    return STATUS_OK;
}

void board_close(struct board *board)
{
    if (board == NULL) return;
    for (int r = 0; r < BOARD_MOST_RANKS; r++) region_view_close(board->views[r]);
    region_free(board->memory, board->book);
    memory_count(board->device, MEMORY_COMMUNICATION, -(int64_t)board->bytes);
    free(board);
}

uint64_t board_reference(const struct board *board) { return board != NULL ? board->reference : 0; }

enum status board_attach(struct board *board, int other, int self, uint64_t reference,
    const struct region_offer *offer)
{
    assert(other < BOARD_MOST_RANKS && self < BOARD_MOST_RANKS);
    if (board->read[other].entries != NULL) return STATUS_OK;
    const unsigned char *theirs;
    if (board->views[other] == NULL) TRY(region_view_open(&board->views[other], offer));
    TRY(region_view_find(&theirs, reference, board->bytes, board->views[other]));
    board->heads[other] = (const uint64_t *)(const void *)theirs + self;
    board->read[other] = (struct lines){
        .entries = (unsigned char *)(uintptr_t)theirs + ENTRIES_AT, /* only read */
        .head = (uint64_t *)(void *)board->memory + other,
        .entry_bytes = board->own.entry_bytes};
    return STATUS_OK;
}

/* How far the slowest has read. Each head is loaded once: they all grow meanwhile. */
static uint64_t least_head(int *slowest, const struct board *board)
{
    uint64_t least = UINT64_MAX;
    for (int r = 0; r < BOARD_MOST_RANKS; r++) {
        if (board->heads[r] == NULL) continue;
        uint64_t head = __atomic_load_n(board->heads[r], __ATOMIC_ACQUIRE); /* pairs with lines_free() */
        if (head >= least) continue;
        least = head;
        *slowest = r;
    }
    return least;
}

int board_slowest(const struct board *board)
{
    int slowest = -1;
    least_head(&slowest, board);
    return slowest;
}

bool board_room(struct board *board)
{
    struct lines *own = &board->own;
    if (own->step - own->seen < LINES_COUNT) return true;
    int slowest;
    own->seen = least_head(&slowest, board);
    return own->step - own->seen < LINES_COUNT;
}

struct lines *board_own(struct board *board) { return &board->own; }

struct lines *board_read(struct board *board, int other) { return &board->read[other]; }

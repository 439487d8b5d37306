/* Regions: what an owner allocates is what a view finds, by reference; references that name nothing are refused; what was freed is told
 * from what came in its place; giving up shows; nothing is held after close.
 * ctest: timeout=30
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "verbs/region.h"

#define STAGE_BYTES 10000

static struct region_view *view_of(struct region_book *book)
{
    struct region_view *view = NULL;
    struct region_offer offer = region_book_offer(book);
    CHECK_OK(region_view_open(&view, &offer));
    return view;
}

static void check_found(const void *ptr, size_t bytes, struct region_book *book, struct region_view *view)
{
    const unsigned char *seen = NULL;
    uint64_t reference = region_reference(ptr, bytes, book);
    CHECK(reference != 0 && (reference & REGION_MARK) == 0);
    if (!CHECK_OK(region_view_find(&seen, reference, bytes, view))) return;
    CHECK(seen != ptr && memcmp(seen, ptr, bytes) == 0);
}

static void check_regions(void)
{
    struct region_book *book = NULL;
    if (!CHECK_OK(region_book_open(&book))) return;
    struct region_view *view = view_of(book);
    unsigned char *a = region_alloc(100000, book), *b = region_alloc(1, book), other[100], *stage;
    if (!CHECK(a != NULL && b != NULL && a[99999] == 0)) return;
    stage = region_alloc_stage(STAGE_BYTES, book);
    if (!CHECK(stage != NULL)) return;
    for (int i = 0; i < 100000; i++) a[i] = (unsigned char)(i * 7);
    memcpy(stage, a, STAGE_BYTES);
    *b = 77;
    check_found(a, 100000, book, view);
    check_found(a + 12345, 1, book, view);
    check_found(b, 1, book, view);
    check_found(stage + 64, STAGE_BYTES - 64, book, view);
    CHECK(region_is_stage(region_reference(stage, 1, book)) && !region_is_stage(region_reference(a, 1, book)));
    CHECK(region_reference(other, sizeof other, book) == 0 && region_reference(a - 1, 2, book) == 0);
    CHECK(region_reference(stage + 1, (STAGE_BYTES + 4095) / 4096 * 4096, book) == 0);
    CHECK(!region_free(other, book));

    /* A reference of what was freed, also when something else has its place. */
    const unsigned char *seen;
    uint64_t old = region_reference(a, 100, book);
    CHECK(region_free(a, book));
    region_view_sweep(view);
    CHECK_STATUS(region_view_find(&seen, old, 100, view), STATUS_DATA);
    unsigned char *c = region_alloc(5000, book);
    *c = 99;
    CHECK(region_reference(c, 100, book) != old);
    CHECK_STATUS(region_view_find(&seen, old, 100, view), STATUS_DATA);
    check_found(c, 1, book, view);

    CHECK(region_view_holds(view));
    region_book_give_up(book);
    CHECK(!region_view_holds(view));
    CHECK_STATUS(region_view_find(&seen, old, 100, view), STATUS_PEER);
    struct region_book *again = region_book_share(book);
    region_book_close(book);
    check_found(c, 1, again, view);
    region_book_close(again);
    region_view_close(view);
}

/* Whatever stands in a record, nothing outside a region is found. */
static void check_wrong_references(void)
{
    struct region_book *book = NULL;
    if (!CHECK_OK(region_book_open(&book))) return;
    struct region_view *view = view_of(book);
    unsigned char *a = region_alloc(4096, book);
    uint64_t right = region_reference(a, 1, book), x = 1;
    int found = 0;
    for (int i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        const unsigned char *seen = NULL;
        uint64_t reference = i % 3 == 0 ? x : i % 3 == 1 ? right + (x >> 50) : right ^ (uint64_t)1 << (x >> 58);
        size_t bytes = x >> 33 & 0x1fff;
        if (region_view_find(&seen, reference & ~REGION_MARK, bytes, view) != STATUS_OK) continue;
        found++;
        volatile unsigned char sum = 0;
        for (size_t k = 0; k < bytes; k++) sum = (unsigned char)(sum + seen[k]);
    }
    CHECK_MSG(found > 0 && found < 20000, "%d found", found);
    struct region_offer offer = region_book_offer(book);
    offer.nonce ^= 1;
    struct region_view *none = NULL;
    CHECK_STATUS(region_view_open(&none, &offer), STATUS_PEER);
    CHECK(none == NULL);
    region_view_close(view);
    region_book_close(book);
}

/* What was looked at is not looked at again: whoever reads it then is told. */
static void check_once(struct region_book *book, struct region_view *view)
{
    void *gone = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char seen[64];
    if (!CHECK(gone != MAP_FAILED)) return;
    uint64_t reference = region_bare_reference(gone, 8192, book);
    CHECK(reference != 0 && munmap(gone, 8192) == 0);
    CHECK(region_bare_reference(gone, 8192, book) == reference);
    CHECK_STATUS(region_view_copy(seen, reference, sizeof seen, view), STATUS_DATA);
}

/* Memory in no region is copied by the kernel, of its owner alone. */
static void check_bare(void)
{
    struct region_book *book = NULL;
    if (!CHECK_OK(region_book_open(&book))) return;
    struct region_view *view = view_of(book);
    struct region_offer offer = region_book_offer(book), other = offer;
    unsigned char *own = malloc(100000), *seen = calloc(1, 100000);
    for (int i = 0; i < 100000; i++) own[i] = (unsigned char)(i * 11);
    uint64_t reference = region_bare_reference(own, 100000, book);
    if (reference != 0) { /* else the kernel copies for nobody here */
        CHECK(region_is_bare(reference) && region_is_bare(reference | REGION_MARK) && !region_is_stage(region_bare_reference(&own, 1, book)));
        CHECK_OK(region_view_copy(seen, reference | REGION_MARK, 100000, view));
        CHECK(memcmp(seen, own, 100000) == 0);
        const unsigned char *found;
        CHECK_STATUS(region_view_find(&found, reference, 1, view), STATUS_DATA);
        CHECK(region_offer_may_copy(&offer));
        CHECK_STATUS(region_view_copy(seen, 4096, 10, view), STATUS_DATA); /* nothing is there */
        CHECK(region_bare_reference((void *)(uintptr_t)4096, 10, book) == 0);
        CHECK(region_bare_reference(own + 1, 99999, book) == reference + 1); /* part of what was looked at */
        check_once(book, view);
        CHECK(region_bare_reference((void *)(uintptr_t)4096, 10, book) == 0); /* what was refused is looked at again */
        region_book_give_up(book);
        CHECK_STATUS(region_view_copy(seen, 4096, 10, view), STATUS_PEER);
    }
    other.nonce ^= 1; /* whoever has its number now */
    CHECK(!region_offer_may_copy(&other) && !region_offer_may_copy(&(struct region_offer){0}));
    CHECK(!region_is_bare(region_reference(region_alloc_stage(1, book), 1, book)));
    free(own);
    free(seen);
    region_view_close(view);
    region_book_close(book);
}

/* More than a book can name: then there is none, and after a free there is one again. */
static void check_full(void)
{
    struct region_book *book = NULL;
    if (!CHECK_OK(region_book_open(&book))) return;
    void *regions[100];
    int count = 0;
    while (count < 100 && (regions[count] = region_alloc(10, book)) != NULL) count++;
    CHECK_MSG(count == 63, "%d regions", count);
    CHECK(region_free(regions[30], book) && region_alloc(10, book) != NULL);
    count = 0;
    while (count < 200 && region_alloc_stage(10, book) != NULL) count++;
    CHECK_MSG(count == REGION_STAGES, "%d stages beside them", count);
    count = 0;
    while (count < 200 && region_alloc_board(10, book) != NULL) count++;
    CHECK_MSG(count == REGION_BOARDS, "%d boards beside them", count);
    CHECK(region_free(regions[31], book) && region_alloc(10, book) != NULL);
    region_book_close(book); /* frees the rest */
}

int main(void)
{
    check_regions();
    check_wrong_references();
    check_bare();
    for (int i = 0; i < 50; i++) check_full(); /* no descriptor stays behind: 3150 of them */
    return test_result();
}

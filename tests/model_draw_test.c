/* The next token: what is left out by top_k and top_p never comes, the rest comes as often as it should, one number is drawn a token, and
 * the draws of a seed are these.
 * ctest: timeout=60
 */
#include <math.h>

#include "model/draw.h"
#include "tests/harness/harness.h"

#define VOCAB 6
#define DRAWS 20000

static const float logits[VOCAB] = {1.0f, 3.0f, -INFINITY, 3.0f, 2.0f, 0.0f}; /* by likelihood: 1, 3, 4, 0, 5; never 2 */

static void check_shares(struct draw_config config, const double *expected)
{
    int counts[VOCAB] = {0};
    int32_t order[VOCAB];
    uint64_t state = 11;
    for (int i = 0; i < DRAWS; i++) counts[draw_token(logits, order, VOCAB, &config, &state)]++;
    for (int id = 0; id < VOCAB; id++) {
        double share = (double)counts[id] / DRAWS;
        CHECK_MSG((expected[id] == 0.0) == (counts[id] == 0) && fabs(share - expected[id]) < 0.015,
            "top_k %d, top_p %g, temperature %g: token %d comes with %g, expected %g", config.top_k, (double)config.top_p,
            (double)config.temperature, id, share, expected[id]);
    }
    CHECK(state == 11 + (uint64_t)DRAWS * 0x9e3779b97f4a7c15u);
}

/* softmax(logits / temperature) over those that are left. */
static void expect(double shares[VOCAB], double temperature, const int *left, int count)
{
    double sum = 0.0;
    for (int i = 0; i < VOCAB; i++) shares[i] = 0.0;
    for (int i = 0; i < count; i++) sum += shares[left[i]] = exp((double)logits[left[i]] / temperature);
    for (int i = 0; i < count; i++) shares[left[i]] /= sum;
}

int main(void)
{
    static const int likely[] = {1, 3, 4, 0, 5};
    double shares[VOCAB];
    expect(shares, 1.0, likely, 5);
    check_shares((struct draw_config){1.0f, 0, 1.0f}, shares);
    check_shares((struct draw_config){1.0f, 99, 1.0f}, shares);
    expect(shares, 0.5, likely, 5);
    check_shares((struct draw_config){0.5f, 0, 1.0f}, shares);
    expect(shares, 1.0, likely, 3);
    check_shares((struct draw_config){1.0f, 3, 1.0f}, shares);
    expect(shares, 1.0, likely, 1); /* of two equals the lower id */
    check_shares((struct draw_config){1.0f, 1, 1.0f}, shares);
    check_shares((struct draw_config){0.0f, 0, 1.0f}, shares);
    check_shares((struct draw_config){1.0f, 0, 0.3f}, shares); /* the first alone has 0.387 */
    expect(shares, 1.0, likely, 2);
    check_shares((struct draw_config){1.0f, 0, 0.5f}, shares);
    check_shares((struct draw_config){1.0f, 2, 1.0f}, shares);
    check_shares((struct draw_config){1.0f, 3, 0.75f}, shares); /* of three that are left two have 0.84 */
    uint64_t state = 1;
    struct draw_config config = {1.0f, 0, 1.0f};
    static const int32_t drawn[8] = {3, 3, 4, 1, 1, 3, 4, 3};
    int32_t found[8];
    bool same = true;
    for (int i = 0; i < 8; i++) same &= (found[i] = draw_token(logits, NULL, VOCAB, &config, &state)) == drawn[i];
    CHECK_MSG(same, "%d %d %d %d %d %d %d %d", found[0], found[1], found[2], found[3], found[4], found[5], found[6], found[7]);
    return test_result();
}

/* params_part: how elements of a part lie in the whole model.
 *
 * Invariant: within a unit the order of elements is the same in both, so two parts of one model are compared
 * by walking both forwards.
 *
 *   a matrix of 4 rows, 6 columns; tensor rank 1 of 2
 *
 *   cut by rows, one band   . . . . . .      cut by columns   . . . a a a
 *                           . . . . . .                       . . . b b b
 *                           a a a a a a                       . . . c c c
 *                           a a a a a a                       . . . d d d     a, b, …: runs
 */
#include <assert.h>

#include "model/params.h"

bool params_stands_for(const struct params *params, const struct param *param)
{
    if (param->unit < params->embedding_units && params->part.stage != 0) return false;
    return param->cut != CUT_NONE || params->part.tensor_rank == 0;
}

struct params_walk params_walk(const struct params *params, int unit, size_t begin, size_t end)
{
    assert(unit >= 0 && unit < params->unit_count && end <= params->unit_elements[unit]);
    return (struct params_walk){params, unit, 0, begin, end};
}

/* From element `at` of the tensor on: how many elements follow each other in the whole one too; where. */
static size_t run_of(size_t *whole, const struct param *param, size_t at)
{
    size_t row = at / param->cols, col = at % param->cols, band = 0;
    size_t first = 0; /* held row that the band begins with */
    for (; row >= first + param->band[band].rows; band++) first += param->band[band].rows;
    assert(band < (size_t)param->band_count);
    size_t whole_row = param->band[band].whole_row + (row - first);
    *whole = whole_row * param->whole_cols + param->whole_col + col;
    if (param->cols < param->whole_cols) return param->cols - col;
    return (first + param->band[band].rows) * param->cols - at;
}

bool params_next_run(struct params_run *run, struct params_walk *walk)
{
    const struct params *params = walk->params;
    if (walk->at >= walk->end) return false;
    const struct param *param = &params->param[walk->next_param];
    while (param->unit != walk->unit || param->offset + param->rows * param->cols <= walk->at)
        param++;
    walk->next_param = (int)(param - params->param);
    assert(walk->next_param < params->param_count);
    size_t whole, rest = walk->end - walk->at;
    size_t count = run_of(&whole, param, walk->at - param->offset);
    *run = (struct params_run){
        param, walk->at, param->whole_offset + whole, count < rest ? count : rest};
    walk->at += run->count;
    return true;
}

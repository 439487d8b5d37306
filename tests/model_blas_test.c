/* OpenBLAS runs kernels that are worthy of this processor once the program has started itself again; and does
 * so once only.
 * ctest: timeout=60
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/blas.h"
#include "tests/harness/harness.h"

int main(int argc, char **argv)
{
    (void)argc;
    if (getenv("MODEL_BLAS_TEST") == NULL) { /* the first start, whatever the surroundings chose */
        unsetenv("OPENBLAS_CORETYPE");
        setenv("MODEL_BLAS_TEST", "1", 1);
        if (blas_better_core() == NULL) return test_skip("this OpenBLAS knows this processor: nothing is to be chosen");
        blas_use_better_core(argv);
        CHECK_MSG(argv == NULL, "the program was not started again");
        return test_result();
    }
    const char *asked = getenv("OPENBLAS_CORETYPE");
    CHECK(asked != NULL && strcmp(asked, blas_core()) == 0);
    CHECK(blas_better_core() == NULL);
    blas_use_better_core(argv); /* returns */
    return test_result();
}

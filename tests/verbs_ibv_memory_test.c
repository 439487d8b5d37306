/* What a NIC is told of memory, and that it forgets it in time: needs an RDMA device, as the guest
 * of tests/verbs_rdma_test.sh has.
 * ctest: timeout=30
 */
#include <string.h>

#include "tests/harness/harness.h"
#include "verbs/ibv_device.h"

#define LARGE ((size_t)1 << 20)

static void check_cache(struct device *device)
{
    struct nics *nics = NULL, *same = NULL;
    struct span large, small, other;
    char elsewhere[100];
    uint32_t key = 0, again = 0;
    CHECK_OK(nics_find(&nics, device));
    CHECK_OK(nics_find(&same, device));
    CHECK(nics == same && nics->count >= 1);
    struct registrations *known = &nics->registrations;
    const struct nic *nic = nics_of_rail(nics->count, nics); /* round again: the first */
    CHECK(nic == &nics->nics[0] && nic_is_active(nic));

    CHECK_OK(memory_alloc(&large, LARGE, MEMORY_WORKSPACE, device));
    CHECK_OK(memory_alloc(&small, REGISTRATION_LEAST_BYTES - 1, MEMORY_WORKSPACE, device));
    CHECK(registrations_find(&key, (char *)large.ptr + 100, 1000, nic, device, known));
    CHECK(registrations_find(&again, large.ptr, LARGE, nic, device, known) && key == again &&
          known->count == 1);
    CHECK(!registrations_find(&again, (char *)large.ptr + 1, LARGE, nic, device, known));
    CHECK(!registrations_find(&again, small.ptr, 10, nic, device, known));
    CHECK(!registrations_find(&again, elsewhere, sizeof elsewhere, nic, device, known) &&
          known->count == 1);

    /* The next allocation may well lie at the same address, on other pages. */
    memory_free(&large, MEMORY_WORKSPACE, device);
    CHECK(known->count == 0);
    CHECK_OK(memory_alloc(&other, LARGE, MEMORY_WORKSPACE, device));
    CHECK(registrations_find(&key, other.ptr, LARGE, nic, device, known) && known->count == 1);
    memory_free(&small, MEMORY_WORKSPACE, device);
    memory_free(&other, MEMORY_WORKSPACE, device);
}

static void check_registration(struct device *device)
{
    struct nics *nics = NULL;
    struct registration registration = {.mr = NULL};
    CHECK_OK(nics_find(&nics, device));
    struct span none = {.ptr = NULL, .bytes = 4096},
                gpu = {.ptr = &none, .bytes = 1, .kind = MEMORY_CUDA};
    CHECK_STATUS(registration_open(&registration, none, true, &nics->nics[0], device), STATUS_VERBS);
    CHECK_MSG(strstr(status_text(), "cannot register 4096 bytes") != NULL, "%s", status_text());
    CHECK_STATUS(registration_open(&registration, gpu, true, &nics->nics[0], device), STATUS_VERBS);
    CHECK(strstr(status_text(), "CUDA memory is not reached") != NULL);
    registration_close(&registration);
}

int main(void)
{
    if (!nics_available()) return test_skip(status_text());
    struct device *device = NULL;
    CHECK_OK(device_open(&device, "host"));
    check_cache(device);
    check_registration(device);
    device_close(device);
    return test_result();
}

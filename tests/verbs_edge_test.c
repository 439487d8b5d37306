/* The conformance suite of the edge contract (verbs/transport.h), run over every transport, and on every device that there is: slots
 * are written and read by copies, whatever memory they are. A new transport joins the table `transports` in edge.c and is held to
 * the same promises.
 * ctest: timeout=120
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "verbs/clock.h"
#include "verbs/device.h"
#include "verbs/transport.h"

#define STEPS     500
#define PATIENCE  20000 /* ms: a deadline that only a fault reaches */
#define SLOT_SIZE 256

struct setting {
    const struct transport *transport;
    const char *device;
    uint64_t slot_count, start;
    bool addresses; /* the producer posts from its own memory where the transport can */
    bool counts;    /* ranks are processes: what they open can be counted */
};

static unsigned char byte_at(uint64_t step, size_t i) { return (unsigned char)(step * 31 + i * 7 + (step >> 8)); }
static size_t bytes_at(uint64_t step) { return step % 5 == 0 ? 0 : (size_t)(step * 37 % (SLOT_SIZE + 1)); }

static struct device *open_device(const struct setting *setting)
{
    struct device *device = NULL;
    CHECK_OK(device_open(&device, setting->device));
    return device;
}

/* To and from the slot that is the edge's next. */
static void put(struct edge *edge, const void *data, size_t bytes)
{
    CHECK_OK(span_copy(edge_slot(edge), span_host(data, bytes), NULL, edge->config.device));
}

static void get(void *data, size_t bytes, struct edge *edge)
{
    struct span slot = span_part(edge_slot(edge), 0, bytes);
    CHECK_OK(span_copy(span_host(data, bytes), slot, NULL, edge->config.device));
}

static struct edge *open_edge_of(const struct setting *setting, enum edge_side side, size_t slot_bytes,
    struct bootstrap *bootstrap, struct device *device)
{
    int self = bootstrap_rank(bootstrap);
    struct edge_config config = {.side = side, .self = self, .peer = 1 - self, .key = 42, .slot_bytes = slot_bytes,
        .slot_count = setting->slot_count, .start = setting->start, .bootstrap = bootstrap, .device = device};
    struct edge *edge = NULL;
    CHECK_OK(edge_open(&edge, setting->transport, &config));
    return edge;
}

static struct edge *open_edge(const struct setting *setting, enum edge_side side, struct bootstrap *bootstrap, struct device *device)
{
    return open_edge_of(setting, side, SLOT_SIZE, bootstrap, device);
}

/* Progresses until the question is answered with yes. */
static bool wait_until(struct edge *edge, bool (*question)(struct edge *))
{
    int64_t deadline = clock_ns() + clock_ms_to_ns(PATIENCE);
    while (!question(edge)) {
        bool moved = false;
        if (!CHECK_OK(edge_progress(edge, &moved))) return false;
        if (!moved) usleep(50);
        if (!CHECK_MSG(clock_ns() < deadline, "waited %d ms", PATIENCE)) return false;
    }
    return true;
}

static bool has_room(struct edge *edge) { return fifo_room(&edge->fifo) > 0; }
static bool has_data(struct edge *edge) { return fifo_ready(&edge->fifo) > 0; }
static bool is_drained(struct edge *edge) { return edge->phase == EDGE_READY && edge_drained(edge); }
static bool is_freed(struct edge *edge) { return edge->phase == EDGE_READY && fifo_unfreed(&edge->fifo) == 0; }
static bool is_ready(struct edge *edge) { return edge->phase == EDGE_READY; }

static void produce(const struct setting *setting, struct edge *edge)
{
    static _Thread_local unsigned char memory[64][SLOT_SIZE];
    unsigned char slot[SLOT_SIZE];
    for (uint64_t s = 0; s < STEPS; s++) {
        if (!wait_until(edge, has_room)) return;
        bool from_memory = setting->addresses && setting->transport->reads_address && bytes_at(s) > 0;
        unsigned char *to = from_memory ? memory[s % 64] : slot;
        for (size_t i = 0; i < bytes_at(s); i++) to[i] = byte_at(s, i);
        if (!from_memory) put(edge, slot, bytes_at(s));
        fifo_post(&edge->fifo, bytes_at(s), s * 3 + 1, from_memory ? (uint64_t)(uintptr_t)to : 0);
        if (s % 7 == 0) { /* unevenly paced: the consumer must not depend on being fed at once */
            bool moved = false;
            CHECK_OK(edge_progress(edge, &moved));
        }
    }
    wait_until(edge, is_drained);
    wait_until(edge, is_freed);
}

/* Wants every other step in memory of its own; what it is asked must be what then comes. */
struct wish {
    unsigned char memory[64][SLOT_SIZE];
    uint64_t start, asked;
    bool put_off; /* the step in question */
};

static void *wish_landing(void *context, uint64_t step, uint64_t bytes, uint64_t tag)
{
    struct wish *wish = context;
    uint64_t s = step - wish->start;
    CHECK(s == wish->asked && bytes == bytes_at(s) && tag == s * 3 + 1);
    wish->put_off = s % 3 == 0 && !wish->put_off;
    if (wish->put_off) return EDGE_LATER; /* and is asked again */
    do wish->asked++;
    while (bytes_at(wish->asked) == 0); /* nobody asks where nothing belongs */
    return s % 2 == 1 ? wish->memory[s % 64] : NULL;
}

static void consume(struct edge *edge)
{
    static _Thread_local struct wish wish;
    wish = (struct wish){.start = edge->config.start, .asked = 1}; /* step 0 is empty */
    edge->landing_context = &wish;
    edge->landing = wish_landing;
    for (uint64_t s = 0; s < STEPS; s++) {
        if (!wait_until(edge, has_data)) return;
        struct fifo_record record = fifo_record(&edge->fifo);
        CHECK_MSG(record.bytes == bytes_at(s) && record.tag == s * 3 + 1, "step %llu: %llu bytes, tag %llu",
            (unsigned long long)s, (unsigned long long)record.bytes, (unsigned long long)record.tag);
        unsigned char slot[SLOT_SIZE];
        const unsigned char *data = record.address != 0 ? fifo_data(&edge->fifo, &record) : slot;
        if (record.address != 0) CHECK(s % 2 == 1 && data == wish.memory[s % 64]);
        else get(slot, bytes_at(s), edge);
        size_t wrong = 0;
        for (size_t i = 0; i < bytes_at(s); i++) wrong += data[i] != byte_at(s, i);
        CHECK_MSG(wrong == 0, "step %llu: %zu bytes differ", (unsigned long long)s, wrong);
        if (s % 50 == 0) usleep(300); /* the producer fills all slots and must wait */
        fifo_free(&edge->fifo);
    }
    wait_until(edge, is_drained);
}

static void stream_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct device *device = open_device(setting);
    enum edge_side side = bootstrap_rank(bootstrap) == 0 ? EDGE_PRODUCER : EDGE_CONSUMER;
    if (side == EDGE_CONSUMER) usleep(2000); /* sides open in any order */
    struct edge *edge = open_edge(setting, side, bootstrap, device);
    if (edge != NULL && side == EDGE_PRODUCER) produce(setting, edge);
    if (edge != NULL && side == EDGE_CONSUMER) consume(edge);
    CHECK_OK(bootstrap_barrier(bootstrap));
    edge_close(edge);
    CHECK(memory_account_read(device).now[MEMORY_COMMUNICATION] == 0);
    CHECK(memory_account_read_beside(device).now[MEMORY_COMMUNICATION] == 0);
    device_close(device);
}

/* ---- a source may be used again as soon as the edge says so: it is spoilt at once, and what arrives must be whole ---- */

#define REUSE_BYTES ((size_t)4 << 20)
#define REUSE_STEPS 6

static unsigned char reuse_byte(uint64_t s) { return (unsigned char)(17 + s * 29); }

/* Odd steps come from memory of the device's, which is free when the edge is drained; even ones from slots, free when head passes. */
static void reuse_produce(struct edge *edge, struct device *device)
{
    struct span memory;
    CHECK_OK(memory_alloc_kind(&memory, REUSE_BYTES, MEMORY_HOST_PINNED, MEMORY_WORKSPACE, device));
    for (uint64_t s = 0; s < REUSE_STEPS; s++) {
        if (!wait_until(edge, has_room)) break;
        bool from_memory = edge->transport->reads_address && s % 2 == 1;
        struct span source = from_memory ? memory : edge_slot(edge);
        CHECK_OK(span_fill(source, reuse_byte(s), NULL, device));
        fifo_post(&edge->fifo, REUSE_BYTES, s, from_memory ? (uint64_t)(uintptr_t)source.ptr : 0);
        wait_until(edge, from_memory ? is_drained : is_freed);
        CHECK_OK(span_fill(source, 0xEE, NULL, device));
    }
    memory_free(&memory, MEMORY_WORKSPACE, device);
}

static void reuse_consume(struct edge *edge)
{
    unsigned char *copy = malloc(REUSE_BYTES);
    for (uint64_t s = 0; s < REUSE_STEPS; s++) {
        if (!wait_until(edge, has_data)) break;
        struct fifo_record record = fifo_record(&edge->fifo);
        const unsigned char *data = record.address != 0 ? fifo_data(&edge->fifo, &record) : copy;
        if (record.address == 0) get(copy, REUSE_BYTES, edge);
        size_t wrong = 0;
        for (size_t i = 0; i < REUSE_BYTES; i++) wrong += data[i] != reuse_byte(s);
        CHECK_MSG(wrong == 0, "step %llu: %zu bytes are spoilt", (unsigned long long)s, wrong);
        fifo_free(&edge->fifo);
    }
    wait_until(edge, is_drained);
    free(copy);
}

static void reuse_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct device *device = open_device(setting);
    bool producer = bootstrap_rank(bootstrap) == 0;
    struct edge *edge = open_edge_of(setting, producer ? EDGE_PRODUCER : EDGE_CONSUMER, REUSE_BYTES, bootstrap, device);
    if (producer) reuse_produce(edge, device);
    else reuse_consume(edge);
    CHECK_OK(bootstrap_barrier(bootstrap));
    edge_close(edge);
    device_close(device);
}

/* ---- twins: an edge each way that may share what carries them, opened in whatever order ---- */

static void duplex(struct edge *out, struct edge *in, const struct setting *setting)
{
    int64_t deadline = clock_ns() + clock_ms_to_ns(PATIENCE);
    uint64_t sent = 0, received = 0, turn = 0;
    while (sent < STEPS || received < STEPS || !is_drained(out) || !is_drained(in)) {
        bool moved = false;
        if (!CHECK_OK(edge_progress(out, &moved)) || !CHECK_OK(edge_progress(in, &moved))) return;
        if (sent < STEPS && fifo_room(&out->fifo) > 0) {
            unsigned char slot[SLOT_SIZE];
            for (size_t i = 0; i < bytes_at(sent); i++) slot[i] = byte_at(sent, i);
            put(out, slot, bytes_at(sent));
            fifo_post(&out->fifo, bytes_at(sent), sent, 0);
            sent++;
        }
        turn++; /* steps pile up where they are taken late: credits are then words of their own */
        if ((!setting->addresses || turn % 5 == 0) && received < STEPS && fifo_ready(&in->fifo) > 0) {
            struct fifo_record record = fifo_record(&in->fifo);
            unsigned char slot[SLOT_SIZE];
            size_t wrong = 0;
            CHECK(record.bytes == bytes_at(received) && record.tag == received);
            get(slot, bytes_at(received), in);
            for (size_t i = 0; i < bytes_at(received); i++) wrong += slot[i] != byte_at(received, i);
            if (!CHECK_MSG(wrong == 0, "step %llu: %zu wrong bytes", (unsigned long long)received, wrong)) return;
            fifo_free(&in->fifo);
            received++;
        }
        if (!moved) usleep(20);
        if (!CHECK_MSG(clock_ns() < deadline, "waited %d ms", PATIENCE)) return;
    }
}

static int sockets_open(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++) {
        int type = 0;
        socklen_t length = sizeof type;
        count += getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0;
    }
    return count;
}

static struct edge *open_twin(const struct setting *setting, enum edge_side side, struct edge *twin, struct bootstrap *bootstrap, struct device *device)
{
    int self = bootstrap_rank(bootstrap);
    struct edge_config config = {.side = side, .self = self, .peer = 1 - self, .key = 43, .slot_bytes = SLOT_SIZE,
        .slot_count = setting->slot_count, .start = setting->start, .shared = true, .twin = twin, .bootstrap = bootstrap, .device = device};
    struct edge *edge = NULL;
    CHECK_OK(edge_open(&edge, setting->transport, &config));
    return edge;
}

/* Both ranks open their producer first, so not the same edge; or the same. */
static void twins_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct device *device = open_device(setting);
    bool late = setting->slot_count == 8, zero = bootstrap_rank(bootstrap) == 0;
    int before = sockets_open();
    struct edge *out = NULL, *in = NULL;
    if (!late || zero) out = open_twin(setting, EDGE_PRODUCER, NULL, bootstrap, device);
    in = open_twin(setting, EDGE_CONSUMER, out, bootstrap, device);
    if (out == NULL) out = open_twin(setting, EDGE_PRODUCER, in, bootstrap, device);
    if (out != NULL && in != NULL) duplex(out, in, setting);
    CHECK_OK(bootstrap_barrier(bootstrap));
    if (setting->counts && setting->transport == &transport_tcp) CHECK(sockets_open() == before + 1);
    edge_close(zero ? out : in);
    edge_close(zero ? in : out);
    device_close(device);
}

/* ---- a full FIFO: room falls to none, and comes back one by one ---- */

static void full_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct device *device = open_device(setting);
    bool producer = bootstrap_rank(bootstrap) == 0;
    struct edge *edge = open_edge(setting, producer ? EDGE_PRODUCER : EDGE_CONSUMER, bootstrap, device);
    wait_until(edge, is_ready);
    CHECK_OK(bootstrap_barrier(bootstrap));
    if (producer) {
        /* Without the consumer, at most its slots and the own staging can be posted. */
        uint64_t posted = 0;
        for (int idle = 0; idle < 200; idle++) {
            bool moved = false;
            for (; fifo_room(&edge->fifo) > 0; posted++) fifo_post(&edge->fifo, 0, posted, 0);
            CHECK_OK(edge_progress(edge, &moved));
            usleep(100);
        }
        CHECK_MSG(posted >= setting->slot_count && posted <= 2 * setting->slot_count, "posted %llu",
            (unsigned long long)posted);
    } else {
        for (int i = 0; i < 100; i++, usleep(100)) { /* takes in what comes but frees nothing */
            bool moved = false;
            CHECK_OK(edge_progress(edge, &moved));
        }
        CHECK(fifo_ready(&edge->fifo) <= setting->slot_count);
    }
    CHECK_OK(bootstrap_barrier(bootstrap));
    edge_close(edge);
    device_close(device);
}

/* ---- a producer that dies is a status with its name, or (shared memory) the bootstrap's news ---- */

static void death_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct device *device = open_device(setting);
    bool producer = bootstrap_rank(bootstrap) == 0;
    struct edge *edge = open_edge(setting, producer ? EDGE_PRODUCER : EDGE_CONSUMER, bootstrap, device);
    wait_until(edge, is_ready);
    CHECK_OK(bootstrap_barrier(bootstrap));
    if (producer) raise(SIGKILL);
    enum status status = STATUS_OK;
    int64_t deadline = clock_ns() + clock_ms_to_ns(PATIENCE);
    while (status == STATUS_OK && clock_ns() < deadline) {
        bool moved = false;
        status = edge_progress(edge, &moved);
        if (status == STATUS_OK) status = bootstrap_check(NULL, bootstrap);
        usleep(100);
    }
    CHECK_STATUS(status, STATUS_PEER);
    CHECK_MSG(strstr(status_text(), "rank 0") != NULL, "%s", status_text());
    edge_close(edge);
    device_close(device);
}

/* ---- case C6: strangers at the door ---- */

static int listening_port(void)
{
    DIR *fds = opendir("/proc/self/fd");
    int port = -1;
    for (struct dirent *entry; fds != NULL && port < 0 && (entry = readdir(fds)) != NULL;) {
        int fd = atoi(entry->d_name), listens = 0;
        socklen_t length = sizeof listens;
        struct sockaddr_in name;
        socklen_t name_length = sizeof name;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || !listens) continue;
        if (getsockname(fd, (struct sockaddr *)&name, &name_length) == 0) port = ntohs(name.sin_port);
    }
    if (fds != NULL) closedir(fds);
    return port;
}

static int knock(int port, const char *text)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&name, sizeof name) == 0);
    if (text != NULL) CHECK(send(fd, text, strlen(text), MSG_NOSIGNAL) > 0);
    return fd;
}

static void stranger_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct device *device = open_device(setting);
    bool producer = bootstrap_rank(bootstrap) == 0;
    struct edge *edge = NULL;
    int silent[20], silent_count = 0, chatty = -1; /* more than have a place */
    if (!producer) {
        edge = open_edge(setting, EDGE_CONSUMER, bootstrap, device);
        int port = listening_port();
        CHECK(port > 0);
        close(knock(port, NULL));
        chatty = knock(port, "GET /metrics HTTP/1.1\r\nHost: nobody\r\n\r\n");
        while (silent_count < 20) silent[silent_count++] = knock(port, NULL);
    }
    CHECK_OK(bootstrap_barrier(bootstrap));
    int64_t begin = clock_ns();
    if (producer) edge = open_edge(setting, EDGE_PRODUCER, bootstrap, device);
    if (producer) produce(setting, edge);
    else consume(edge);
    CHECK(clock_ns() - begin < clock_ms_to_ns(5000));
    CHECK_OK(bootstrap_barrier(bootstrap));
    while (silent_count > 0) close(silent[--silent_count]);
    if (chatty >= 0) close(chatty);
    edge_close(edge);
    device_close(device);
}

/* ---- CUDA IPC alone ---- */

/* One side closes first, and at once opens the next edge: the slots of the last are not given back while the other has them open. Then
 * each closes in its turn, and the order does not matter. */
static void linger_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct device *device = open_device(setting);
    bool producer = bootstrap_rank(bootstrap) == 0;
    unsigned char seven = 7, found = 0;
    struct allocation slots = {0}, now;
    for (int round = 0; round < 4; round++) {
        struct edge *edge = open_edge(setting, producer ? EDGE_PRODUCER : EDGE_CONSUMER, bootstrap, device);
        CHECK(!memory_find(&now, slots.ptr, 1, device) || now.id != slots.id); /* those of the last round */
        wait_until(edge, is_ready);
        if (!producer && edge->slots_kind == MEMORY_CUDA) CHECK(memory_find(&slots, edge->fifo.slots, 1, device));
        CHECK((edge->slots_kind == MEMORY_CUDA) == (getenv("RINGZERO_CUDA_IPC") == NULL));
        CHECK(edge->kernels_reach);
        CHECK_OK(bootstrap_barrier(bootstrap));
        bool first = producer == (round % 2 == 1);
        if (first) edge_close(edge);
        CHECK_OK(bootstrap_barrier(bootstrap));
        if (!first && producer) { /* into memory that nobody listens to any more, but that is there */
            put(edge, &seven, 1);
            get(&found, 1, edge);
            CHECK(found == 7);
        }
        if (!first) edge_close(edge);
        CHECK(memory_account_read(device).now[MEMORY_COMMUNICATION] == 0);
        CHECK_OK(bootstrap_barrier(bootstrap));
    }
    device_close(device);
}

/* Without a word to the other. */
static void closed_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct device *device = open_device(setting);
    bool producer = bootstrap_rank(bootstrap) == 0;
    struct edge *edge = open_edge(setting, producer ? EDGE_PRODUCER : EDGE_CONSUMER, bootstrap, device);
    if (!producer) edge_close(edge);
    CHECK_OK(bootstrap_barrier(bootstrap));
    enum status status = STATUS_OK;
    for (int i = 0; i < 20000 && producer && status == STATUS_OK && edge->phase != EDGE_READY; i++) {
        bool moved = false;
        status = edge_progress(edge, &moved);
        usleep(100);
    }
    if (producer) {
        CHECK_STATUS(status, STATUS_PEER);
        edge_close(edge);
    }
    device_close(device);
}

static void check_host_device(void)
{
    struct device *device = NULL;
    struct edge *edge = NULL;
    const char *why = "";
    CHECK_OK(device_open(&device, "host"));
    struct edge_config config = {.peer = 1, .slot_bytes = 64, .slot_count = 1, .device = device};
    CHECK_STATUS(edge_open(&edge, &transport_cuda_ipc, &config), STATUS_INVALID);
    CHECK(edge == NULL && strstr(status_text(), "--device cuda") != NULL);
    CHECK(!transport_cuda_ipc.available(&why, device));
    device_close(device);
}

/* ---- what runs where ---- */

/* Processes first: fork() wants a process without threads. */
static void check_processes(const struct setting *setting)
{
    struct setting twins = {setting->transport, setting->device, 8, 0, false, true};
    CHECK(ranks_as_processes(2, PATIENCE, stream_body, (void *)setting, -1) == 0);
    CHECK(ranks_as_processes(2, PATIENCE, twins_body, &twins, -1) == 0);
    CHECK(ranks_as_processes(2, PATIENCE, death_body, (void *)setting, 0) == 0);
    if (setting->transport == &transport_tcp) CHECK(ranks_as_processes(2, PATIENCE, stranger_body, (void *)setting, -1) == 0);
    if (setting->transport == &transport_cuda_ipc) CHECK(ranks_as_processes(2, PATIENCE, linger_body, (void *)setting, -1) == 0);
}

static void check_threads(const struct transport *transport, const char *device)
{
    struct setting settings[] = {{transport, device, 4, 0, false, false}, {transport, device, 1, 0, false, false},
        {transport, device, 8, UINT64_MAX - 100, true, false}, {transport, device, 2, 7, true, false}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        ranks_as_threads(2, PATIENCE, stream_body, &settings[i]);
        ranks_as_threads(2, PATIENCE, full_body, &settings[i]);
        ranks_as_threads(2, PATIENCE, twins_body, &settings[i]);
    }
    struct setting large = {transport, device, 2, 0, true, false};
    ranks_as_threads(2, PATIENCE, reuse_body, &large);
    if (transport != &transport_cuda_ipc) return;
    ranks_as_threads(2, PATIENCE, linger_body, settings);
    ranks_as_threads(2, PATIENCE, closed_body, settings);
}

/* All of it in pinned memory. */
static void check_fallback(bool processes)
{
    struct setting setting = {&transport_cuda_ipc, "cudasim", 4, 0, false, false};
    setenv("RINGZERO_CUDA_IPC", "0", 1);
    if (processes) check_processes(&setting);
    else check_threads(setting.transport, setting.device);
    unsetenv("RINGZERO_CUDA_IPC");
}

static bool runs(const struct transport *transport, const char *device, bool has_cudasim)
{
    bool host = strcmp(device, "host") == 0;
    if (transport == &transport_cuda_ipc && host) return false;
    return (host || has_cudasim) && test_takes(transport->name);
}

int main(void)
{
    static const char *const devices[] = {"host", "cudasim"};
    bool has_cudasim = test_has_device("cudasim");
    for (int d = 0; d < 2; d++)
        for (const struct transport *const *t = transports; *t != NULL; t++) {
            struct setting setting = {*t, devices[d], 4, 0, false, false};
            if (runs(*t, devices[d], has_cudasim)) check_processes(&setting);
        }
    if (runs(&transport_cuda_ipc, "cudasim", has_cudasim)) check_fallback(true);
    for (int d = 0; d < 2; d++)
        for (const struct transport *const *t = transports; *t != NULL; t++)
            if (runs(*t, devices[d], has_cudasim)) check_threads(*t, devices[d]);
    if (runs(&transport_cuda_ipc, "cudasim", has_cudasim)) check_fallback(false);
    check_host_device();
    CHECK(transport_by_name("shm") == &transport_shm && transport_by_name("carrier pigeon") == NULL);
    CHECK(transport_by_name("cuda_ipc") == &transport_cuda_ipc);
    return test_result();
}

/* computing: see computing.h. */
#include "shard/computing.h"

#include "verbs/clock.h"

enum status computing_open(
    struct computing *computing, struct stream *stream, struct device *device)
{
    *computing = (struct computing){.stream = stream, .device = device};
    return event_open(&computing->reached, device);
}

void computing_close(struct computing *computing)
{
    event_close(computing->reached, computing->device);
    computing->reached = NULL;
}

static int64_t begin_wait(struct computing *computing)
{
    profile_begin(computing->profile, computing->row, 0);
    return clock_ns();
}

static void end_wait(int64_t begin_ns, struct computing *computing)
{
    computing->wait_ns += (uint64_t)(clock_ns() - begin_ns);
    profile_end(computing->profile, 0, 0);
}

enum status computing_waits(struct event *event, struct computing *computing)
{
    if (computing->stream != NULL) {
        profile_begin(computing->profile, computing->row, 0);
        enum status queued = event_wait(event, computing->stream, computing->device);
        profile_end(computing->profile, 0, 0);
        return queued;
    }
    int64_t begin_ns = begin_wait(computing);
    enum status status = event_synchronize(event, computing->device);
    end_wait(begin_ns, computing);
    return status;
}

enum status computing_goes_first(struct stream *stream, struct computing *computing)
{
    if (computing->stream == NULL) return STATUS_OK; /* computed is what has been called */
    TRY(event_record(computing->reached, computing->stream, computing->device));
    return event_wait(computing->reached, stream, computing->device);
}

enum status computing_synchronize(struct stream *stream, struct computing *computing)
{
    int64_t begin_ns = begin_wait(computing);
    enum status status = stream_synchronize(stream, computing->device);
    end_wait(begin_ns, computing);
    return status;
}

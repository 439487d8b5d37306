/* pipeline_run: see pipeline_run.h. */
#include "shard/pipeline_run.h"

#include <stdlib.h>

#include "shard/computing.h"

struct pipeline_run {
    struct pipeline_config config;
    struct stream *onward, *back; /* NULL where there is one stage */
    struct computing computing;
    struct event *input_there, *output_sent, *gradient_there, *gradient_sent;
    bool gradient_expected; /* its receive is queued */
};

static bool is_first(const struct pipeline_run *run)
{
    return run->config.stage == 0;
}

static bool is_last(const struct pipeline_run *run)
{
    return run->config.stage == run->config.stage_count - 1;
}

static enum status open_streams(struct pipeline_run *run)
{
    struct device *device = run->config.device;
    TRY(stream_open(&run->onward, device, "onward"));
    TRY(stream_open(&run->back, device, "back"));
    TRY(computing_open(&run->computing, run->config.compute, device));
    run->computing.profile = run->config.profile;
    run->computing.row = "wait for neighbours";
    TRY(event_open(&run->input_there, device));
    TRY(event_open(&run->output_sent, device));
    TRY(event_open(&run->gradient_there, device));
    return event_open(&run->gradient_sent, device);
}

enum status pipeline_open(struct pipeline_run **out, const struct pipeline_config *config)
{
    *out = NULL;
    struct pipeline_run *run = calloc(1, sizeof *run);
    if (run == NULL) return FAIL(STATUS_SYSTEM, "no memory for a pipeline's record");
    run->config = *config;
    enum status status;
    if (config->stage_count > 1) TRY_GOTO(open_streams(run));
    *out = run;
    return STATUS_OK;
fail:
    pipeline_close(run);
    return status;
}

void pipeline_close(struct pipeline_run *run)
{
    if (run == NULL) return;
    struct device *device = run->config.device;
    stream_close(run->onward, device); /* first: what is queued still looks at the events */
    stream_close(run->back, device);
    computing_close(&run->computing);
    event_close(run->input_there, device);
    event_close(run->output_sent, device);
    event_close(run->gradient_there, device);
    event_close(run->gradient_sent, device);
    free(run);
}

/* ---- what is queued ---- */

static enum status queue_receive(struct span x, int from, struct ring_comm *comm,
    struct stream *stream, struct event *there, struct pipeline_run *run)
{
    enum dtype dtype = run->config.dtype;
    TRY(computing_goes_first(stream, &run->computing)); /* for what was computed with this memory before */
    TRY(ring_recv(x, x.bytes / dtype_bytes(dtype), dtype, from, comm, stream));
    return event_record(there, stream, run->config.device);
}

static enum status queue_send(struct span x, int to, struct ring_comm *comm, struct stream *stream,
    struct event *sent, struct pipeline_run *run)
{
    enum dtype dtype = run->config.dtype;
    TRY(computing_goes_first(stream, &run->computing));
    TRY(ring_send(x, x.bytes / dtype_bytes(dtype), dtype, to, comm, stream));
    return event_record(sent, stream, run->config.device);
}

static enum status expect_gradient(const struct model_pass *pass, struct pipeline_run *run)
{
    const struct pipeline_config *config = &run->config;
    if (run->gradient_expected) return STATUS_OK;
    run->gradient_expected = true;
    return queue_receive(model_gradient(pass, config->model), config->stage + 1, config->back,
        run->back, run->gradient_there, run);
}

/* ---- passes ---- */

static enum status wait_for(struct event *event, struct pipeline_run *run)
{
    profile_begin(run->config.waits, PIPELINE_WAITS, 0);
    enum status status = computing_waits(event, &run->computing);
    profile_end(run->config.waits, 0, 0);
    return status;
}

enum status pipeline_forward(
    const struct model_pass *pass, bool backward_follows, struct pipeline_run *run)
{
    const struct pipeline_config *config = &run->config;
    if (!is_first(run)) {
        TRY(queue_receive(model_input(pass, config->model), config->stage - 1, config->onward,
            run->onward, run->input_there, run));
        TRY(wait_for(run->input_there, run));
    }
    if (!is_last(run)) {
        TRY(wait_for(run->output_sent, run)); /* the last one's, whose memory this one takes */
        if (backward_follows) TRY(expect_gradient(pass, run));
    }
    TRY(model_forward_pass(pass, config->model));
    if (is_last(run)) return STATUS_OK;
    return queue_send(model_output(pass, config->model), config->stage + 1, config->onward,
        run->onward, run->output_sent, run);
}

enum status pipeline_backward(float scale, const struct model_pass *pass, struct pipeline_run *run)
{
    const struct pipeline_config *config = &run->config;
    if (!is_last(run)) {
        TRY(expect_gradient(pass, run)); /* in order: what was sent from there has left */
        TRY(wait_for(run->gradient_there, run));
        run->gradient_expected = false;
        /* Inputs come back into the output's memory. */
        if (config->carried) TRY(wait_for(run->output_sent, run));
    } else if (!is_first(run)) {
        TRY(wait_for(run->gradient_sent, run));
    }
    TRY(model_backward_pass(scale, pass, config->model));
    if (is_first(run)) return STATUS_OK;
    return queue_send(model_gradient(pass, config->model), config->stage - 1, config->back,
        run->back, run->gradient_sent, run);
}

enum status pipeline_synchronize(struct pipeline_run *run)
{
    if (run->config.stage_count == 1) return STATUS_OK;
    TRY(computing_synchronize(run->onward, &run->computing));
    return computing_synchronize(run->back, &run->computing);
}

uint64_t pipeline_wait_ns(const struct pipeline_run *run)
{
    return run->computing.wait_ns;
}

void pipeline_predict_sent(uint64_t sent[COLLECTIVE_COUNT], uint64_t forward_rows,
    uint64_t backward_rows, int channels, const struct pipeline_config *config)
{
    uint64_t rows = config->stage < config->stage_count - 1 ? forward_rows : 0;
    if (config->stage > 0) rows += backward_rows;
    sent[COLLECTIVE_SEND] += rows * (uint64_t)channels * dtype_bytes(config->dtype);
}

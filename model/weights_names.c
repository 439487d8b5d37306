/* weights_names: see weights_names.h.
 */
#include "model/weights_names.h"

#include <assert.h>
#include <stdio.h>

#include "model/weights_kind.h"

struct names {
    const char *name[WEIGHTS_PIECES]; /* behind "h.N." or "layers.N." for those of a block */
    bool turned;
};

static const struct names gpt2[KIND_COUNT] = {
    [KIND_WTE] = {{"wte.weight"}, false},
    [KIND_WPE] = {{"wpe.weight"}, false},
    [KIND_LN1W] = {{"ln_1.weight"}, false},
    [KIND_LN1B] = {{"ln_1.bias"}, false},
    [KIND_QKVW] = {{"attn.c_attn.weight"}, true},
    [KIND_QKVB] = {{"attn.c_attn.bias"}, false},
    [KIND_ATTPROJW] = {{"attn.c_proj.weight"}, true},
    [KIND_ATTPROJB] = {{"attn.c_proj.bias"}, false},
    [KIND_LN2W] = {{"ln_2.weight"}, false},
    [KIND_LN2B] = {{"ln_2.bias"}, false},
    [KIND_FCW] = {{"mlp.c_fc.weight"}, true},
    [KIND_FCB] = {{"mlp.c_fc.bias"}, false},
    [KIND_FCPROJW] = {{"mlp.c_proj.weight"}, true},
    [KIND_FCPROJB] = {{"mlp.c_proj.bias"}, false},
    [KIND_LNFW] = {{"ln_f.weight"}, false},
    [KIND_LNFB] = {{"ln_f.bias"}, false},
};

static const struct names llama[KIND_COUNT] = {
    [KIND_WTE] = {{"embed_tokens.weight"}, false},
    [KIND_LN1W] = {{"input_layernorm.weight"}, false},
    [KIND_QKVW] = {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}, false},
    [KIND_ATTPROJW] = {{"self_attn.o_proj.weight"}, false},
    [KIND_LN2W] = {{"post_attention_layernorm.weight"}, false},
    [KIND_FCW] = {{"mlp.gate_proj.weight", "mlp.up_proj.weight"}, false},
    [KIND_FCPROJW] = {{"mlp.down_proj.weight"}, false},
    [KIND_LNFW] = {{"norm.weight"}, false},
};

const char *weights_prefix(enum architecture architecture)
{
    return architecture == ARCHITECTURE_LLAMA ? "model." : "transformer.";
}

bool weights_writes_prefix(enum architecture architecture)
{
    return architecture == ARCHITECTURE_LLAMA; /* as the models that are published have it */
}

/* Rows of piece number `index` of Llama's kinds that have several. */
static size_t piece_rows(enum weights_kind kind, int index, const struct model_config *config)
{
    size_t channels = (size_t)config->channels;
    size_t kv_rows = channels / (size_t)config->heads * (size_t)model_kv_heads(config);
    if (kind == KIND_FCW) return (size_t)model_hidden(config);
    return index == 0 ? channels : kv_rows;
}

int weights_pieces(struct weights_piece piece[WEIGHTS_PIECES], const struct param *param,
    const struct model_config *config)
{
    bool is_llama = config->architecture == ARCHITECTURE_LLAMA;
    enum weights_kind kind = weights_kind(param);
    const struct names *names = is_llama ? &llama[kind] : &gpt2[kind];
    int count = 0;
    size_t row = 0;
    for (; count < WEIGHTS_PIECES && names->name[count] != NULL; count++) {
        struct weights_piece *p = &piece[count];
        bool several = names->name[1] != NULL;
        *p = (struct weights_piece){.first_row = row, .turned = names->turned,
            .rows = several ? piece_rows(kind, count, config) : param->whole_rows};
        row += p->rows;
        if (param->layer < 0) snprintf(p->name, sizeof p->name, "%s", names->name[count]);
        else snprintf(p->name, sizeof p->name, "%s.%d.%s", is_llama ? "layers" : "h", param->layer, names->name[count]);
    }
    assert(row == param->whole_rows);
    return count;
}

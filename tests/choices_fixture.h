/* choices_fixture: files of questions with endings, as llm.c writes them (model/choices.h). */
#ifndef TESTS_CHOICES_FIXTURE_H
#define TESTS_CHOICES_FIXTURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define QUESTIONS_MOST_WORDS 65536

struct questions {
    int32_t header[256];
    uint16_t word[QUESTIONS_MOST_WORDS];
    size_t words, began; /* the example in hand */
};

static inline void questions_begin(struct questions *q)
{
    *q = (struct questions){.header = {20240522, 1}};
}

static inline void questions_put(struct questions *q, int word)
{
    if (q->words == QUESTIONS_MOST_WORDS) abort();
    q->word[q->words++] = (uint16_t)word;
}

static inline void questions_example(struct questions *q, int label, int endings)
{
    q->began = q->words;
    questions_put(q, 65535);
    questions_put(q, 0);
    questions_put(q, q->header[2]++);
    questions_put(q, label);
    questions_put(q, endings);
}

/* Tokens that differ from list to list, below vocab. */
static inline void questions_tokens(struct questions *q, int count, int vocab)
{
    questions_put(q, count);
    for (int i = 0; i < count; i++) questions_put(q, (int)(q->words * 7 + q->words * q->words / 5) % vocab);
    q->word[q->began + 1] = (uint16_t)(2 * (q->words - q->began));
}

/* Examples whose rows have at most t tokens, of many lengths. */
static inline void questions_fill(struct questions *q, int examples, int endings, int vocab, int t)
{
    questions_begin(q);
    for (int i = 0; i < examples; i++) {
        int context = 1 + i * 5 % (t - 3);
        questions_example(q, (i * 7 + i / 3) % endings, endings);
        questions_tokens(q, context, vocab);
        for (int e = 0; e < endings; e++) questions_tokens(q, 1 + (i + 3 * e) % (t - context + 1), vocab);
    }
}

static inline void questions_write(const struct questions *q, const char *path)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(q->header, sizeof q->header, 1, file) != 1 ||
        fwrite(q->word, sizeof *q->word, q->words, file) != q->words || fclose(file) != 0)
        abort();
}

#endif

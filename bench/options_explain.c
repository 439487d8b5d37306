/* options_explain: see options_explain.h.
 *
 *   --name           unknown      no option is called or begins so; the nearest is offered
 *                    ambiguous    several begin so, and none is called so
 *                    lacks        it takes a value, and is the last word
 *   --name=VALUE     no value     it takes none
 *   -abc             the first letter that is no option, or that lacks its value
 */
#include "bench/options_explain.h"

#include <stdio.h>
#include <string.h>

#define MOST_NAME  40 /* letters that are compared */
#define MOST_CHECK 8  /* options that an ambiguous one is told to stand for */

/* Calls see() for each option of argp and of its children. */
typedef void (*option_visitor)(const struct argp_option *option, void *context);

static void visit(const struct argp *argp, option_visitor see, void *context)
{
    const struct argp_option *option = argp->options;
    const struct argp_option *named = NULL; /* an alias has the value of the one before it */
    for (; option != NULL && (option->name != NULL || option->key != 0 || option->doc != NULL);
         option++) {
        if ((option->flags & OPTION_ALIAS) == 0) named = option;
        struct argp_option seen = *option;
        if (named != NULL) seen.arg = named->arg;
        see(&seen, context);
    }
    for (const struct argp_child *child = argp->children; child != NULL && child->argp != NULL;
         child++)
        visit(child->argp, see, context);
}

/* ---- names ---- */

/* Letters to put in, take out, change, or swap with their neighbour, from one to the other. */
static size_t distance(const char *a, size_t a_length, const char *b)
{
    size_t rows[3][MOST_NAME + 1], b_length = strlen(b);
    if (a_length > MOST_NAME || b_length > MOST_NAME) return MOST_NAME;
    for (size_t j = 0; j <= b_length; j++) rows[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            row[j] = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < row[j]) row[j] = above[j] + 1;
            if (row[j - 1] + 1 < row[j]) row[j] = row[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && two_above[j - 2] + 1 < row[j]) row[j] = two_above[j - 2] + 1;
        }
    }
    return rows[a_length % 3][b_length];
}

struct search {
    const char *name;
    size_t length;
    bool exact;
    const char *found, *value; /* of the one that it names, or begins */
    int count;
    char list[200]; /* of those that it begins */
    const char *nearest;
    size_t least;
};

static void look_at_name(const struct argp_option *option, void *context)
{
    struct search *search = context;
    if (option->name == NULL || search->exact) return;
    size_t away = distance(search->name, search->length, option->name);
    if (away < search->least) {
        search->least = away;
        search->nearest = option->name;
    }
    if (strncmp(option->name, search->name, search->length) != 0) return;
    search->exact = option->name[search->length] == '\0';
    search->found = option->name;
    search->value = option->arg;
    search->count = search->exact ? 1 : search->count + 1;
    size_t used = strlen(search->list);
    if (search->count <= MOST_CHECK && used < sizeof search->list)
        snprintf(search->list + used, sizeof search->list - used, "%s--%s", used == 0 ? "" : ", ",
            option->name);
}

/* name has `length` letters, without its dashes. */
static struct search find_name(const char *name, size_t length, const struct argp *root)
{
    struct search search = {.name = name, .length = length, .least = length / 3 + 2};
    visit(root, look_at_name, &search);
    return search;
}

static bool explain_name(
    char *text, size_t bytes, const char *argument, bool last, const struct argp *root)
{
    size_t length = strcspn(argument + 2, "=");
    bool has_value = argument[2 + length] == '=';
    struct search search = find_name(argument + 2, length, root);
    int shown = (int)length + 2;
    if (search.count == 0 && search.nearest != NULL)
        snprintf(text, bytes, "option \"%.*s\" is unknown, the nearest is --%s", shown, argument,
            search.nearest);
    else if (search.count == 0)
        snprintf(text, bytes, "option \"%.*s\" is unknown, and none is like it", shown, argument);
    else if (search.count > 1)
        snprintf(text, bytes, "option \"%.*s\" is ambiguous, expected one of %s%s", shown, argument,
            search.list, search.count > MOST_CHECK ? ", …" : "");
    else if (search.value != NULL && !has_value && last)
        snprintf(text, bytes, "option \"--%s\" lacks its value, expected --%s %s", search.found,
            search.found, search.value);
    else if (search.value == NULL && has_value)
        snprintf(
            text, bytes, "option \"%s\" has a value, expected --%s alone", argument, search.found);
    else return false;
    return true;
}

/* ---- letters ---- */

struct letter {
    int key;
    const char *value;
    bool found;
};

static void look_at_letter(const struct argp_option *option, void *context)
{
    struct letter *letter = context;
    if (option->key != letter->key) return;
    letter->found = true;
    letter->value = option->arg;
}

static bool explain_letters(
    char *text, size_t bytes, const char *argument, bool last, const struct argp *root)
{
    for (const char *at = argument + 1; *at != '\0'; at++) {
        struct letter letter = {.key = (unsigned char)*at};
        visit(root, look_at_letter, &letter);
        if (letter.found && letter.value == NULL) continue;
        if (letter.found && (at[1] != '\0' || !last))
            return false; /* the rest, or the next word, is its value */
        struct search word = find_name(argument + 1, strlen(argument + 1), root);
        if (letter.found)
            snprintf(text, bytes, "option \"-%c\" lacks its value, expected -%c %s", *at, *at,
                letter.value);
        else if (argument[2] != '\0' &&
                 (word.count == 1 || word.nearest != NULL)) /* of a word with a dash too few */
            snprintf(text, bytes, "option \"-%c\" of \"%s\" is unknown, the nearest is --%s", *at,
                argument, word.count == 1 ? word.found : word.nearest);
        else snprintf(text, bytes, "option \"-%c\" is unknown", *at);
        return true;
    }
    return false;
}

bool options_explain(
    char *text, size_t bytes, const char *argument, bool last, const struct argp *root)
{
    if (argument[0] != '-' || argument[1] == '\0') return false;
    if (argument[1] == '-') return explain_name(text, bytes, argument, last, root);
    return explain_letters(text, bytes, argument, last, root);
}

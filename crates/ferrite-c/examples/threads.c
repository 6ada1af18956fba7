/* Eight threads append to one file of a pool, each line once: threads POOL. The pool exists. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ferrite.h"

enum { THREADS = 8, LINES = 1000, LINE = 16 };

static ferrite_volume *volume;

static void *append(void *number) {
    ferrite_file *file = ferrite_open_file(volume, "/lines", O_WRONLY | O_CREAT, 0644);
    for (int n = 0; file && n < LINES; n++) {
        char line[32];
        snprintf(line, sizeof line, "%07u %07u\n", *(unsigned *)number % 10, (unsigned)n % LINES);
        if (ferrite_append(file, line, LINE, NULL) < 0)
            break;
    }
    ferrite_close_file(file);
    return NULL;
}

int main(int argc, char **argv) {
    volume = argc > 1 ? ferrite_open(argv[1], NULL) : NULL;
    if (!volume) {
        fprintf(stderr, "threads: %s\n", ferrite_error());
        return 1;
    }
    pthread_t threads[THREADS];
    unsigned numbers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, append, &numbers[i]) != 0)
            return 1;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);

    ferrite_file *file = ferrite_open_file(volume, "/lines", O_RDONLY, 0);
    static char seen[THREADS][LINES];
    char line[LINE + 1] = "";
    int count = 0, twice = 0;
    unsigned thread, n;
    while (ferrite_read(file, line, LINE) == LINE)
        if (sscanf(line, "%u %u", &thread, &n) == 2 && thread < THREADS && n < LINES)
            count++, twice += seen[thread][n]++;
    printf("%d lines, %s\n", count, twice ? "some twice" : "each once");
    ferrite_close_file(file);
    return ferrite_close(volume) < 0;
}

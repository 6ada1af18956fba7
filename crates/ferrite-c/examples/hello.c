/* Makes a pool, writes a line, and reads it: hello POOL. */
#include <fcntl.h>
#include <stdio.h>

#include "ferrite.h"

int main(int argc, char **argv) {
    ferrite_volume *volume = argc > 1 ? ferrite_create(argv[1], 64 << 20, NULL) : NULL;
    ferrite_file *file = ferrite_open_file(volume, "/log", O_RDWR | O_CREAT, 0644);
    const char line[] = "each write is atomic and durable\n";
    char text[sizeof line] = "";
    if (!file || ferrite_append(file, line, sizeof line - 1, NULL) < 0 ||
        ferrite_pread(file, text, sizeof text, 0) < 0) {
        fprintf(stderr, "hello: %s\n", ferrite_error());
        return 1;
    }
    fputs(text, stdout);
    ferrite_close_file(file);
    return ferrite_close(volume) < 0;
}

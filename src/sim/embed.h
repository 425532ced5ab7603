/* Text files inside the binary: the assembler reads them at build time, from
 * a path below one of the include folders. */
#ifndef TIDE_SIM_EMBED_H
#define TIDE_SIM_EMBED_H

/* Defines the text `symbol`, ended by a zero byte. */
#define TDI_EMBED(symbol, path)                                                \
    __asm__(".pushsection .rodata\n"                                           \
            ".hidden " #symbol "\n"                                            \
            ".global " #symbol "\n" #symbol ":\n"                              \
            ".incbin \"" path "\"\n"                                           \
            ".byte 0\n"                                                        \
            ".popsection\n");                                                  \
    extern const char symbol[] __attribute__((visibility("hidden")))

#endif

#!/usr/bin/env python3
"""Makes the manual pages of libferrite, section 3, of its header and its guide, so that nothing is said twice:

    scripts/c-manual.py VERSION DIRECTORY

A page for each function, and libferrite(3) for what they share.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMENT = re.compile(r"/\*\n(.*?)\n\s*\*/\n", re.DOTALL)
FUNCTION = re.compile(r"/\*\n((?:(?!\*/).)*?)\n \*/\n([a-z][^;{}]*?\b(ferrite_\w+)\([^;]*\);)", re.DOTALL)
STRUCT = re.compile(r"typedef struct (\w+) \{.*?\n\} \1;", re.DOTALL)


def escaped(text):
    """Text as roff takes it: `code` in bold, links by their words."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\*\*([^*]*)\*\*|`([^`]*)`", lambda found: f"\\fB{found[1] or found[2]}\\fR", text)
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def paragraphs(text):
    """Paragraphs and lists of Markdown."""
    lines = []
    for block in re.split(r"\n\s*\n", text.strip()):
        for item in re.split(r"\n(?=\* )", block):
            is_item = item.startswith("* ")
            words = " ".join(line.strip() for line in item.removeprefix("* ").splitlines())
            lines += [".IP \\(bu 2" if is_item else ".PP", escaped(words)]
    return "\n".join(lines)


def code(text):
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return ".nf\n" + re.sub(r"(?m)^([.'])", r"\\&\1", plain) + "\n.fi"


def page(name, version, parts):
    head = f".TH {name} 3 \"\" \"Ferrite {version}\" \"Library Functions Manual\""
    return "\n".join([head] + [f".SH {title}\n{text}" for title, text in parts]) + "\n"


def summary(text):
    """The first sentence, as `man -k` shows it."""
    sentence = re.split(r"(?<=[a-zA-Z)])[.:;](?:\s|$)", " ".join(text.replace("`", "").split()), maxsplit=1)[0]
    return escaped(sentence[0].lower() + sentence[1:])


def of_function(version, text, prototype, structs):
    used = [whole for name, whole in structs.items() if re.search(rf"\b{name}\b", prototype)]
    plain = [COMMENT.sub("", whole) for whole in used]
    name = re.search(r"\b(ferrite_\w+)\(", prototype)[1]
    synopsis = "\n\n".join(["#include <ferrite.h>", *plain, prototype])
    return name, page(
        name,
        version,
        [
            ("NAME", f"{name} \\- {summary(text)}"),
            ("LIBRARY", "Ferrite (libferrite, \\-lferrite)"),
            ("SYNOPSIS", code(synopsis)),
            ("DESCRIPTION", paragraphs(text)),
            ("SEE ALSO", ".BR libferrite (3)"),
        ],
    )


def of_library(version, guide, names):
    sections = dict(re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", guide))
    listed = "\n".join(f".BR {name} (3)" + ("," if name != names[-1] else "") for name in names)
    return page(
        "libferrite",
        version,
        [
            ("NAME", "libferrite \\- files of Ferrite in the process of a program"),
            ("SYNOPSIS", code("#include <ferrite.h>\n\ncc program.c $(pkg-config --cflags --libs ferrite)")),
            ("DESCRIPTION", paragraphs(guide.split("\n\n", 1)[1].split("\n## ", 1)[0].split("README shows", 1)[0])),
            ("RULES", paragraphs(sections["Rules that all functions share"])),
            ("SUBMITTED TRANSFERS", paragraphs(sections["Submitted transfers"].split("`crates/", 1)[0])),
            ("SEE ALSO", f"{listed}\n.PP\n.BR ferrite (1)"),
        ],
    )


def main():
    version, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    header = (ROOT / "crates/ferrite-c/include/ferrite.h").read_text()
    guide = (ROOT / "docs/c.md").read_text()
    structs = {found[1]: found[0] for found in STRUCT.finditer(header)}
    pages = dict(of_function(version, text, prototype, structs) for text, prototype, _ in FUNCTION.findall(header))
    pages["libferrite"] = of_library(version, guide, list(pages))
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (directory / f"{name}.3").write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()

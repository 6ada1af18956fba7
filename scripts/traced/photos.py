"""A photo library: imports pictures, makes thumbnails and sidecars, keeps a catalogue. For scripts/record-traces.sh.

    photos.py DIRECTORY COUNT
"""
import os
import random
import shutil
import sqlite3
import sys
import tempfile

library, count = sys.argv[1], int(sys.argv[2])
os.makedirs(library, exist_ok=True)
db = sqlite3.connect(os.path.join(library, "catalogue.db"))
db.execute("create table if not exists photo(id integer primary key, name unique, bytes, rating, faces, keywords)")
first = db.execute("select count(*) from photo").fetchone()[0]
random.seed(first + 1)

SIDECAR = """<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description xmp:Rating="{rating}" photoshop:City="{city}">
{keywords}</rdf:Description></x:xmpmeta>
{padding}<?xpacket end="w"?>
"""


def sidecar(name, rating):
    words = "".join(f"<rdf:li>{random.getrandbits(40):x}</rdf:li>\n" for _ in range(random.randint(1, 12)))
    # Rewritten and renamed, as most programs do.
    with open(name + ".xmp.new", "w", encoding="utf-8") as file:
        file.write(SIDECAR.format(rating=rating, city=random.getrandbits(60), keywords=words, padding=" " * 1024))
    os.rename(name + ".xmp.new", name + ".xmp")


def take(number):
    """Copies a picture from the camera."""
    folder = os.path.join(library, f"{number // 50:04}")
    os.makedirs(folder, exist_ok=True)
    name = os.path.join(folder, f"IMG_{number:05}.jpg")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as camera:
        camera.write(random.randbytes(random.randint(150_000, 900_000)))
        camera.flush()
        shutil.copyfile(camera.name, name)
    for width, mean in [(160, 7_000), (1024, 60_000)]:
        with open(f"{name}.{width}.thumb", "wb") as thumb:
            thumb.write(random.randbytes(int(random.gauss(mean, mean / 6))))
    sidecar(name, 0)
    db.execute("insert into photo values(?, ?, ?, 0, ?, '')", (number, name, os.path.getsize(name), random.randbytes(300)))
    db.commit()


def rate(number):
    """Somebody looks at a picture: a star, a keyword, and the orientation in the picture's own head."""
    name, rating = db.execute("select name, rating from photo where id = ?", (number,)).fetchone()
    rating = (rating + 1) % 6
    db.execute("update photo set rating = ?, keywords = keywords || ? where id = ?", (rating, f"w{rating},", number))
    db.commit()
    sidecar(name, rating)
    if random.random() < 0.3:
        with open(name, "r+b") as picture:
            picture.seek(random.choice([54, 274]))
            picture.write(b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00")


for number in range(first, first + count):
    take(number)
    for _ in range(random.randint(0, 3)):
        rate(random.randrange(number + 1))
db.close()

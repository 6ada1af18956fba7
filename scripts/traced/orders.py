"""Small transactions like TPC-C's on SQLite: new orders, payments, deliveries. For scripts/record-traces.sh.

    orders.py DATABASE JOURNAL_MODE load|TRANSACTIONS
"""
import random
import sqlite3
import sys

DISTRICTS, CUSTOMERS, ITEMS = 10, 300, 5000

path, mode, what = sys.argv[1:]
db = sqlite3.connect(path, isolation_level=None)
db.execute(f"pragma journal_mode={mode}")
db.execute("pragma synchronous=full")
random.seed(1)


def text(low, high):
    return "".join(random.choices("abcdefghijklmnopqrstuvwxyz ", k=random.randint(low, high)))


def load():
    db.executescript(
        """
        create table district(id integer primary key, next integer, paid real);
        create table customer(district, id, name, balance real, data, primary key(district, id));
        create table item(id integer primary key, price real, quantity integer, data);
        create table orders(id integer primary key, district, customer, lines, delivered);
        create table line(orders, number, item, quantity, amount real, primary key(orders, number)) without rowid;
        create table history(customer, amount real, data);
        create index open_orders on orders(delivered, district);
        """
    )
    db.execute("begin")
    for district in range(DISTRICTS):
        db.execute("insert into district values(?, 1, 0)", (district,))
        for customer in range(CUSTOMERS):
            db.execute("insert into customer values(?, ?, ?, 0, ?)", (district, customer, text(8, 16), text(200, 400)))
    for item in range(ITEMS):
        db.execute("insert into item values(?, ?, 1000, ?)", (item, random.uniform(1, 100), text(26, 50)))
    db.execute("commit")


def new_order(district, customer):
    count = random.randint(5, 15)
    db.execute("update district set next = next + 1 where id = ?", (district,))
    order = db.execute("insert into orders values(null, ?, ?, ?, 0)", (district, customer, count)).lastrowid
    for number, item in enumerate(random.sample(range(ITEMS), count)):
        db.execute("update item set quantity = quantity - 1 where id = ?", (item,))
        db.execute("insert into line values(?, ?, ?, 1, ?)", (order, number, item, random.uniform(1, 100)))


def payment(district, customer):
    amount = random.uniform(1, 5000)
    db.execute("update district set paid = paid + ? where id = ?", (amount, district))
    db.execute("update customer set balance = balance - ? where district = ? and id = ?", (amount, district, customer))
    db.execute("insert into history values(?, ?, ?)", (customer, amount, text(12, 24)))


def delivery(district, _):
    oldest = db.execute("select min(id) from orders where delivered = 0 and district = ?", (district,)).fetchone()[0]
    if oldest is not None:
        db.execute("update orders set delivered = 1 where id = ?", (oldest,))


if what == "load":
    load()
else:
    for _ in range(int(what)):
        db.execute("begin immediate")
        # The shares of TPC-C; its two reading transactions write nothing.
        transaction = random.choices([new_order, payment, delivery], [45, 43, 4])[0]
        transaction(random.randrange(DISTRICTS), random.randrange(CUSTOMERS))
        db.execute("commit")
db.close()

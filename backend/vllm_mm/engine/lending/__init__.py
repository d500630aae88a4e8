"""Leases across processes: the controller lends (`office`), a worker borrows (`borrower`), and `link` is between them."""

-- Times are milliseconds since 1970.

CREATE TABLE IF NOT EXISTS payments (
	id        TEXT PRIMARY KEY,
	account   TEXT NOT NULL,
	reference TEXT NOT NULL, -- the payer's number; not unique
	amount    INTEGER NOT NULL CHECK (amount > 0),
	currency  TEXT NOT NULL,
	payee     TEXT NOT NULL,
	created   INTEGER NOT NULL
) STRICT;

CREATE INDEX IF NOT EXISTS payments_by_reference ON payments (account, reference);

CREATE TABLE IF NOT EXISTS idempotency_keys (
	account     TEXT NOT NULL, -- the scope of a key
	key         TEXT NOT NULL,
	fingerprint BLOB NOT NULL,
	state       TEXT NOT NULL CHECK (state IN ('running', 'done')),
	owner       TEXT NOT NULL, -- who may settle it; changes with every claim
	lease_until INTEGER NOT NULL,
	expires     INTEGER NOT NULL,
	status      INTEGER NOT NULL DEFAULT 0, -- status and body: the stored answer
	body        BLOB,
	PRIMARY KEY (account, key)
) STRICT;

CREATE INDEX IF NOT EXISTS idempotency_keys_by_expiry ON idempotency_keys (expires);

CREATE TABLE IF NOT EXISTS closed_attempts (
	account   TEXT NOT NULL,
	reference TEXT NOT NULL,
	up_to     INTEGER NOT NULL,
	expires   INTEGER NOT NULL,
	PRIMARY KEY (account, reference)
) STRICT;

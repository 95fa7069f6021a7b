CREATE TABLE IF NOT EXISTS payments (
	id        text PRIMARY KEY,
	account   text NOT NULL,
	reference text NOT NULL, -- the payer's number; not unique
	amount    bigint NOT NULL CHECK (amount > 0),
	currency  text NOT NULL,
	payee     text NOT NULL,
	created   timestamptz NOT NULL
);

CREATE INDEX IF NOT EXISTS payments_by_reference ON payments (account, reference);

CREATE TABLE IF NOT EXISTS idempotency_keys (
	account     text NOT NULL, -- the scope of a key
	key         text NOT NULL,
	fingerprint bytea NOT NULL,
	state       text NOT NULL CHECK (state IN ('running', 'done')),
	owner       text NOT NULL, -- who may settle it; changes with every claim
	lease_until timestamptz NOT NULL,
	expires     timestamptz NOT NULL,
	status      integer NOT NULL DEFAULT 0, -- status and body: the stored answer
	body        bytea,
	PRIMARY KEY (account, key)
);

CREATE INDEX IF NOT EXISTS idempotency_keys_by_expiry ON idempotency_keys (expires);

CREATE TABLE IF NOT EXISTS closed_attempts (
	account   text NOT NULL,
	reference text NOT NULL,
	up_to     integer NOT NULL,
	expires   timestamptz NOT NULL,
	PRIMARY KEY (account, reference)
);

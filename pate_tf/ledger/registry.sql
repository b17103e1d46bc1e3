CREATE TABLE ledgers (
  ledger TEXT PRIMARY KEY, identity TEXT, source TEXT NOT NULL, unit TEXT) STRICT;
CREATE INDEX charged ON ledgers (source);
CREATE TABLE folders (
  ledger TEXT NOT NULL, folder TEXT NOT NULL, UNIQUE (ledger, folder)) STRICT;
CREATE TABLE rows (
  ledger TEXT NOT NULL, sequence INTEGER NOT NULL, digest TEXT NOT NULL, debit TEXT,
  UNIQUE (digest, ledger)) STRICT;
CREATE INDEX noted ON rows (ledger);
CREATE TABLE contents (
  content BLOB NOT NULL, source TEXT NOT NULL, UNIQUE (content, source)) STRICT;
CREATE TABLE keys AS SELECT randomblob(32) AS key

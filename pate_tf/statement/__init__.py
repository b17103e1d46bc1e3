"""The privacy statement: values, sentences, page, and its check against a ledger."""

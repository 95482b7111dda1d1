-- Names the request that may store the answer of a key, so that one whose claim was committed without its knowledge claims it again.
alter table idempotency_keys add column claim text;

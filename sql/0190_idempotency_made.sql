-- What the first request of a key has committed ahead of its answer, for a repeat that has to answer in its place; and the end of the
-- lease of a claim. The default is for processes that renew no leases.
alter table idempotency_keys
  add column made jsonb,
  add column leased_until timestamptz(3) not null default now() + interval '15 minutes';

-- Fails the statement that would commit work of a request whose key another request has claimed.
create function idempotency_claim_lost() returns text language plpgsql as $$
begin
  raise exception 'another request has claimed the Idempotency-Key' using errcode = 'P0409';
end $$;

-- Seals of expired audit entries; workers that were lost while they sent a delivery.

-- Start of a chain whose first seals retention deleted: position and hash of the last deleted seal, which the next one
-- continues. One row per chain.
create table audit_chain_starts (
  chain text primary key,
  position bigint not null check (position > 0),
  hash bytea not null check (length(hash) = 32)
);
create trigger audit_chain_starts_inserted before insert on audit_chain_starts
  for each row execute function refuse_change('audit seals are append-only', 'INSERT');
create trigger audit_chain_starts_updated before update on audit_chain_starts
  for each row execute function refuse_change('audit seals are append-only', 'UPDATE');
create trigger audit_chain_starts_kept before delete on audit_chain_starts
  for each row execute function refuse_change('audit seals are append-only');
create trigger audit_chain_starts_no_truncate before truncate on audit_chain_starts
  for each statement execute function refuse_change('audit seals are append-only');

drop trigger audit_seals_append_only on audit_seals;
create trigger audit_seals_append_only before update on audit_seals
  for each row execute function refuse_change('audit seals are append-only', 'UPDATE');
create trigger audit_seals_kept before delete on audit_seals
  for each row execute function refuse_change('audit seals are append-only', 'DELETE');

-- Seals to delete.
create index audit_seals_pruned on audit_seals (chain, position) where pruned;
create index audit_seal_batches_pruned on audit_seal_batches (chain, position) where cardinality(pruned) = count;

-- As before; a chain may also have no seals but a start.
create or replace function skip_seal_before_batches() returns trigger language plpgsql as $$
begin
  if exists (select from audit_seal_batches where chain = new.chain)
    or exists (select from audit_chain_starts where chain = new.chain) then
    return null;
  end if;
  return new;
end $$;

-- Workers that were lost while they had claimed a queued delivery. Such a delivery is a suspect, which a worker sends while
-- it does nothing else; `ran_alone` is true while it does.
alter table webhook_deliveries
  add column worker_losses integer not null default 0,
  add column ran_alone boolean not null default false;
create index webhook_deliveries_suspects on webhook_deliveries (worker_losses, next_attempt_at, id)
  where status = 'queued' and worker_losses > 0;

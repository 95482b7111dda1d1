-- Open streams of end users and projects in each web process. `holder` is the presence of the process: an advisory lock on
-- its listening connection. Rows of a process that is gone do not count, and are deleted by the next stream of the subject.
-- Unlogged: a crash of the database ends the connections, after which every process writes its rows again.
create unlogged table open_streams (
  -- ID of an actor or project.
  subject text not null,
  holder bigint not null,
  streams integer not null,
  primary key (subject, holder)
) with (fillfactor = 50);

-- Sets the numbers of open streams of a process: as many as requested up to the maximum over all processes, at least those kept.
create function set_open_streams(process bigint, subjects text[], kept integer[], wanted integer[], maximums integer[])
returns table (set_subject text, allowed integer, others integer) language plpgsql as $$
begin
  for n in 1 .. cardinality(subjects) loop
    set_subject := subjects[n];
    if wanted[n] > kept[n] then
      perform pg_advisory_xact_lock(hashtextextended('open streams ' || set_subject, 0));
    end if;
    delete from open_streams t where t.subject = set_subject and t.holder <> process
      and pg_try_advisory_xact_lock_shared(t.holder);
    select coalesce(sum(t.streams), 0) into others from open_streams t where t.subject = set_subject and t.holder <> process;
    allowed := greatest(kept[n], least(wanted[n], maximums[n] - others));
    if allowed = 0 then
      delete from open_streams t where t.subject = set_subject and t.holder = process;
    else
      insert into open_streams as t (subject, holder, streams) values (set_subject, process, allowed)
        on conflict (subject, holder) do update set streams = excluded.streams;
    end if;
    return next;
  end loop;
end $$;

-- Keys of operators do not meet keys of end users.
drop index conversation_messages_idempotency;
update conversation_messages set idempotency_key = substr(idempotency_key, length(operator_id) + 2)
  where operator_id is not null and starts_with(idempotency_key, operator_id || ':');
create unique index conversation_messages_idempotency on conversation_messages (conversation_id, idempotency_key, operator_id)
  nulls not distinct where idempotency_key is not null;

-- Whether the platform wrote the message, as a note on a takeover or handback: the model reads it in a separate form.
alter table conversation_messages add column note boolean not null default false;

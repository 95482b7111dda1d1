-- What readiness writes to see that the database takes writes; processes share the row, so that they write rarely.
create table write_probe (
  id boolean primary key default true check (id),
  written_at timestamptz(3) not null default '-infinity'
);
insert into write_probe default values;

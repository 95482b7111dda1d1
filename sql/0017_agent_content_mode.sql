-- Whether the content of an agent's turns is kept; null leaves it to the project. The stricter of the two counts.
alter table agents add column trace_content_mode text check (trace_content_mode in ('full', 'none'));

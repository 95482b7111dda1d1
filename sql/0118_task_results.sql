-- The turn, run or firing, or the tool, that the last result of a task is of: what a turn said goes with its content.
alter table tasks add column result_of text;
create index tasks_result_of on tasks (result_of) where result_of is not null;

-- The revision of the task that an entry made: the order, whatever the clocks of those who wrote it say.
alter table task_transitions add column seq integer;
update task_transitions t set seq = s.seq
from (select id, row_number() over (partition by task_id order by created_at, id) as seq from task_transitions) s
where s.id = t.id;
alter table task_transitions alter column seq set not null, add unique (task_id, seq);
drop index task_transitions_task;
create index task_transitions_generation on task_transitions (generation_id) where generation_id is not null;

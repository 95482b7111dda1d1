-- The message of a dispatch is its lease. `due_at` of a started one: when its work is checked without a notification.
update task_dispatches set due_at = look_at where state = 'started';
alter table task_dispatches drop column holder, drop column heartbeat_at, drop column look_at;

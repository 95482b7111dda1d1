-- The steps that a turn was made for: what is erased with its content.
create index playbook_execution_steps_generation on playbook_execution_steps (generation_id)
  where generation_id is not null;

-- Whether the rule extracts facts from turns of evaluations, whose inputs are test data.
alter table memory_rules add column include_evaluations boolean not null default false;

-- Source of the turn that started the run, which the turns of the run inherit: `eval` in an evaluation.
alter table orchestration_runs add column source text;

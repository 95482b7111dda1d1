-- Tables of a database with all migrations up to 0241_rule_firings, changed to the tables of sql/.
comment on table generation_work is null;
alter table trigger_firings validate constraint trigger_firings_state_check;

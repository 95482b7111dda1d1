-- Tools that the vendor of an agent's model runs itself, such as web search; sources that an answer cites.
alter table agents add column vendor_tools jsonb;
alter table generation_steps add column annotations jsonb;

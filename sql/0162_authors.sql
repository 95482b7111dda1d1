-- The author of a definition: the principal of the last write that changed what it does, as work that runs later keeps one.
-- What a definition does on the platform is bounded by the rights that its author has then. Null: not known, which allows
-- nothing until somebody adopts it. A version keeps its author with its configuration.
alter table agents add column author jsonb;
alter table agent_versions add column author jsonb;
alter table tools add column author jsonb;
alter table guardrails add column author jsonb;
alter table guardrail_versions add column author jsonb;
alter table deciders add column author jsonb;
alter table decider_versions add column author jsonb;
alter table orchestrations add column author jsonb;
alter table orchestration_versions add column author jsonb;
alter table workflows add column author jsonb;
alter table workflow_versions add column author jsonb;
alter table playbooks add column author jsonb;
alter table playbook_versions add column author jsonb;
alter table ingestion_rules add column author jsonb;
alter table evals add column author jsonb;

-- Versions have kept the user who wrote them.
update agent_versions set author = jsonb_build_object('type', 'user', 'id', created_by, 'via', null) where created_by is not null;
update guardrail_versions set author = jsonb_build_object('type', 'user', 'id', created_by, 'via', null) where created_by is not null;
update decider_versions set author = jsonb_build_object('type', 'user', 'id', created_by, 'via', null) where created_by is not null;
update orchestration_versions set author = jsonb_build_object('type', 'user', 'id', created_by, 'via', null) where created_by is not null;
update workflow_versions set author = jsonb_build_object('type', 'user', 'id', created_by, 'via', null) where created_by is not null;
update playbook_versions set author = jsonb_build_object('type', 'user', 'id', created_by, 'via', null) where created_by is not null;
update agents t set author = v.author from agent_versions v where v.agent_id = t.id and v.version = t.version;
update guardrails t set author = v.author from guardrail_versions v where v.guardrail_id = t.id and v.version = t.version;
update deciders t set author = v.author from decider_versions v where v.decider_id = t.id and v.version = t.version;
update orchestrations t set author = v.author from orchestration_versions v where v.orchestration_id = t.id and v.version = t.version;
update workflows t set author = v.author from workflow_versions v where v.workflow_id = t.id and v.version = t.version;
update playbooks t set author = v.author from playbook_versions v where v.playbook_id = t.id and v.version = t.version;

-- Of the others the audit log knows.
create temporary table last_writes on commit drop as
  select distinct on (resource_public_id) resource_public_id as id,
    jsonb_build_object('type', principal_type, 'id', principal_id, 'via', null) as author
  from audit_entries
  where action in ('tools:CreateTool', 'tools:UpdateTool', 'ingestion-rules:CreateIngestionRule', 'ingestion-rules:UpdateIngestionRule',
      'evaluations:CreateEval')
    and status < 300 and principal_id is not null and resource_public_id is not null
  order by resource_public_id, created_at desc, id desc;
update tools t set author = w.author from last_writes w where w.id = t.id;
update ingestion_rules t set author = w.author from last_writes w where w.id = t.id;
update evals t set author = w.author from last_writes w where w.id = t.id;

-- What a user or a key wrote, before it is deleted.
create index agents_author on agents ((author ->> 'id'));
create index tools_author on tools ((author ->> 'id'));
create index guardrails_author on guardrails ((author ->> 'id'));
create index deciders_author on deciders ((author ->> 'id'));
create index orchestrations_author on orchestrations ((author ->> 'id'));
create index workflows_author on workflows ((author ->> 'id'));
create index playbooks_author on playbooks ((author ->> 'id'));
create index ingestion_rules_author on ingestion_rules ((author ->> 'id'));
create index evals_author on evals ((author ->> 'id'));
create index memory_rules_author on memory_rules ((authority ->> 'id'));

-- As before, with the author of the version.
create or replace function served_agent(wanted text, asked integer, owner text, drawn integer, unset jsonb) returns setof agents
language plpgsql stable rows 1 as $$
declare
  live agents;
  kept jsonb;
  wrote jsonb;
begin
  select * into live from agents where id = wanted;
  if not found then
    return;
  end if;
  if asked is null and live.active_release is not null then
    -- A key stays below a percentage that is raised: then no end user goes back to the stable version.
    if owner is not null then
      drawn := ('x' || left(encode(sha256(convert_to(wanted || ':' || owner, 'UTF8')), 'hex'), 8))::bit(32)::bigint % 100;
    end if;
    asked := live.active_release ->> case
      when drawn < (live.active_release ->> 'canary_percent')::integer then 'canary_version' else 'stable_version' end;
  end if;
  if asked <> live.version then
    select config, author into kept, wrote from agent_versions where agent_id = wanted and version = asked;
    if found then
      live := jsonb_populate_record(live, unset || kept || jsonb_build_object('version', asked,
        'max_context_messages', live.max_context_messages, 'single_session_per_actor', live.single_session_per_actor));
      live.author := wrote;
    end if;
  end if;
  return next live;
end $$;

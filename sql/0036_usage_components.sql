-- The model and the service tier that a vendor names in its answer; null if it names none.
alter table usage_events add column served_model text, add column service_tier text;
alter table generation_steps add column served_model text, add column service_tier text;

-- A price may apply to one service tier only, and only to calls whose prompt has more tokens.
alter table prices add column tier text, add column above_tokens bigint check (above_tokens > 0);
drop index prices_identity;
create unique index prices_identity on prices
  (project_id, ai_provider_id, provider, model, resource, component, tier, above_tokens, effective_from) nulls not distinct;

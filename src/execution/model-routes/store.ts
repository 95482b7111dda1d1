import { z } from 'zod'
import { countStatement, type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { aiProviderKind, type ProviderRow } from '../providers/model.ts'
import { type ModelRouteRow, modelRouteKind } from './model.ts'

/** Lists the routes of a project, oldest first. */
export const listProjectRoutes = (db: Queryable, projectId: string): Promise<readonly ModelRouteRow[]> =>
  db.any(modelRouteKind.sql`
    select ${modelRouteKind.columns} from model_routes t where t.project_id = ${projectId} order by t.id`)

/** State of a target that failed and has not answered since. */
export type Breaker = { ai_provider_id: string; model: string; failures: number; failed_seconds_ago: number }

/** Route with its providers and breakers; timestamps in jsonb format. */
export type LoadedRoute = { route: ModelRouteRow; providers: ProviderRow[]; breakers: Breaker[] }

/** Returns the first provider to call: the agent's, else the provider of the first target; undefined for none. */
export const firstProvider = ({ provider, route }: { provider: ProviderRow | null; route: LoadedRoute | null }) =>
  provider ?? route?.providers.find(({ id }) => id === route.route.targets[0].ai_provider_id)

/** Parser of the expressions below. */
export const loadedRoute = z.custom<LoadedRoute>().nullable()

/**
 * Returns a jsonb expression for a route, or the default route of the project, with everything that a call needs. It is
 * part of the statements that read or write a turn, so that each call uses the current route and breaker states.
 */
const routeJson = (routeId: Fragment, projectId: Fragment): Fragment => sql.fragment`(
  select jsonb_build_object(
    'route', to_jsonb(r),
    'providers', (select jsonb_agg(to_jsonb(pr)) from (
      select ${aiProviderKind.columns} from ai_providers t where t.id = any(r.ai_provider_ids)) pr),
    'breakers', coalesce((select jsonb_agg(jsonb_build_object('ai_provider_id', b.ai_provider_id, 'model', b.model,
      'failures', b.failures, 'failed_seconds_ago', extract(epoch from clock_timestamp() - b.failed_at)))
      from model_breakers b where b.ai_provider_id = any(r.ai_provider_ids)), '[]'))
  from (select ${modelRouteKind.columns} from model_routes t where t.id = coalesce(${routeId}, (
    select d.default_model_route_id from projects d where d.id = ${projectId}))) r)`

/** Returns the route expression for a row with this alias; null if the row has a provider. */
export const routeOfRow = (alias: string): Fragment => {
  const column = (name: string) => sql.fragment`${sql.identifier([alias, name])}`
  const loaded = routeJson(column('model_route_id'), column('project_id'))
  return sql.fragment`case when ${column('ai_provider_id')} is null then ${loaded} end`
}

/** Returns the route expression for the ID of a route. */
export const routeById = (id: Fragment): Fragment => routeJson(id, sql.fragment`null::text`)

/** Returns the route expression for the default route of a project. */
export const defaultRouteOf = (projectId: Fragment): Fragment => routeJson(sql.fragment`null::text`, projectId)

/** Returns the route expression for a row that was already read. */
export const routeOf = (consumer: {
  ai_provider_id: string | null
  model_route_id: string | null
  project_id: string
}): Fragment =>
  consumer.ai_provider_id === null
    ? routeJson(sql.fragment`${consumer.model_route_id}::text`, sql.fragment`${consumer.project_id}::text`)
    : sql.fragment`null::jsonb`

const routeRow = sql.type(z.object({ route: loadedRoute }))

/** Returns the route for the calls of a consumer, or null. */
export const findRoute = (db: Queryable, consumer: Parameters<typeof routeOf>[0]): Promise<LoadedRoute | null> =>
  db.oneFirst(routeRow`select ${routeOf(consumer)} as route`)

type BreakerKey = { ai_provider_id: string; model: string }

/** Counts a failure of a target and ends its probe. */
export const recordFailure = (db: Queryable, { ai_provider_id, model }: BreakerKey) =>
  db.query(voidStatement`
    insert into model_breakers (ai_provider_id, model, failures, failed_at)
    values (${ai_provider_id}, ${model}, 1, clock_timestamp())
    on conflict (ai_provider_id, model) do update
    set failures = model_breakers.failures + 1, failed_at = excluded.failed_at, probe_until = null`)

/** Deletes the failures of a target that answered. */
export const recordSuccess = (db: Queryable, { ai_provider_id, model }: BreakerKey) =>
  db.query(voidStatement`delete from model_breakers where ai_provider_id = ${ai_provider_id} and model = ${model}`)

const probeRow = sql.type(z.strictObject({ answer: z.enum(['probe', 'healthy', 'open']) }))

/**
 * Claims the probe of a target whose cooldown seems to be over. One caller in the deployment gets `probe`, for the
 * duration of an attempt; for others the breaker stays `open`, unless the target has answered.
 */
export const claimProbe = (
  db: Queryable,
  { ai_provider_id, model }: BreakerKey,
  rule: { failure_threshold: number; cooldown_seconds: number; probe_seconds: number },
): Promise<'probe' | 'healthy' | 'open'> =>
  db.oneFirst(probeRow`
    with probe as (
      update model_breakers set probe_until = clock_timestamp() + make_interval(secs => ${rule.probe_seconds})
      where ai_provider_id = ${ai_provider_id} and model = ${model} and failures >= ${rule.failure_threshold}
        and failed_at + make_interval(secs => ${rule.cooldown_seconds}) <= clock_timestamp()
        and (probe_until is null or probe_until <= clock_timestamp())
      returning 1)
    select case when exists (select 1 from probe) then 'probe' when exists (
      select 1 from model_breakers
      where ai_provider_id = ${ai_provider_id} and model = ${model} and failures >= ${rule.failure_threshold})
      then 'open' else 'healthy' end as answer`)

/** Releases a claimed probe without a result. */
export const releaseProbe = (db: Queryable, { ai_provider_id, model }: BreakerKey) =>
  db.query(voidStatement`
    update model_breakers set probe_until = null where ai_provider_id = ${ai_provider_id} and model = ${model}`)

/** Deletes breaker rows with failures before a time and returns their number (index model_breakers_failed). */
export const deleteOldFailures = (db: Queryable, before: Date, limit: number): Promise<number> =>
  db.oneFirst(countStatement`
    with old as (
      delete from model_breakers where (ai_provider_id, model) in (
        select ai_provider_id, model from model_breakers where failed_at < ${before.toISOString()}::timestamptz limit ${limit})
      returning 1)
    select count(*) as count from old`)

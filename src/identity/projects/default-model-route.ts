import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { type Fragment, type Queryable, sql } from '../../core/db/sql.ts'
import { extensionPoint } from '../../core/declarations.ts'

/** One way to go by the default model route of a project: the kind of what does, and a select of their ids. */
export type DefaultRouteUsers = { kind: string; ids: (project: Fragment) => Fragment }

/** What binds neither a model route nor a provider of its own. */
export const defaultRouteInheritors = extensionPoint<DefaultRouteUsers>('inheritors of the default model route')

const SAMPLE = 5

const defaultRoute = sql.type(z.strictObject({ default_model_route_id: z.string().nullable() }))

/**
 * The default model route of a project under FOR SHARE: until the transaction ends nobody clears or replaces it. For
 * writes that leave something without a route and a provider of its own.
 */
export const lockDefaultRoute = (db: Queryable, projectId: string): Promise<string | null> =>
  db.maybeOneFirst(defaultRoute`select default_model_route_id from projects where id = ${projectId} for share`)

const inheriting = sql.type(z.strictObject({ kind: z.string(), count: z.int(), ids: z.array(z.string()) }))

/**
 * Refuses to clear the default model route while something goes by it: PROJECT_DEFAULT_ROUTE_INHERITED with
 * `meta { count, counts, sample_ids }`. The caller holds the project, so that nothing can come to inherit it meanwhile.
 */
export async function refuseRouteInUse(db: Queryable, projectId: string): Promise<void> {
  const parts = defaultRouteInheritors
    .all()
    .map(
      ({ kind, ids }) => sql.fragment`select ${kind}::text as kind, id from (${ids(sql.fragment`${projectId}`)}) as i`,
    )
  if (parts.length === 0) return
  const found = await db.any(inheriting`
    select kind, count(*) as count, (array_agg(id order by id desc))[1:${SAMPLE}::int] as ids
    from (${sql.join(parts, sql.fragment` union `)}) as inheriting group by kind order by kind`)
  if (found.length === 0) return
  raise('PROJECT_DEFAULT_ROUTE_INHERITED', {
    meta: {
      count: found.reduce((total, { count }) => total + count, 0),
      counts: Object.fromEntries(found.map(({ kind, count }) => [kind, count])),
      sample_ids: found.flatMap(({ ids }) => ids).slice(0, SAMPLE),
    },
  })
}

import { z } from 'zod'
import { extensionPoint } from '#core/base/declarations.ts'
import { raise } from '#core/base/errors.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'

/** Resources that use the default model route of a project: their kind, and a select of their IDs. */
export type DefaultRouteUsers = { kind: string; ids: (project: Fragment) => Fragment }

/** Resources without their own model route or provider. */
export const defaultRouteInheritors = extensionPoint<DefaultRouteUsers>({
  name: 'inheritors of the default model route',
  folder: 'identity/projects',
  description:
    'Lists the resources that use the default model route of a project, because they name no route or provider',
})

const SAMPLE = 5

const defaultRouteRow = sql.type(z.strictObject({ default_model_route_id: z.string().nullable() }))

/**
 * Returns the default model route of a project under FOR SHARE, so that it cannot be cleared or replaced until the
 * transaction ends. For writes that leave a resource without its own route or provider.
 */
export const lockDefaultRoute = (db: Queryable, projectId: string): Promise<string | null> =>
  db.maybeOneFirst(defaultRouteRow`select default_model_route_id from projects where id = ${projectId} for share`)

const inheritorRow = sql.type(z.strictObject({ kind: z.string(), count: z.int(), ids: z.array(z.string()) }))

/**
 * Refuses to clear the default model route while resources inherit it. The caller holds the project lock, so that no
 * resource can start to inherit it.
 * @throws PROJECT_DEFAULT_ROUTE_INHERITED with `meta { count, counts, sample_ids }`
 */
export async function refuseRouteInUse(db: Queryable, projectId: string): Promise<void> {
  const parts = defaultRouteInheritors
    .all()
    .map(
      ({ kind, ids }) => sql.fragment`select ${kind}::text as kind, id from (${ids(sql.fragment`${projectId}`)}) as i`,
    )
  if (parts.length === 0) return
  const found = await db.any(inheritorRow`
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

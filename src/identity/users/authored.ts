import { z } from 'zod'
import { canSeeProject } from '#core/api/access.ts'
import { kinds } from '#core/api/kind.ts'
import { pageResult } from '#core/api/lists.ts'
import type { Page } from '#core/api/operation.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'

/** Definition whose effects are restricted to the permissions of a user or one of the user's keys. */
export const AuthoredDefinition = z
  .object({
    kind: z.string().describe('Kind of the definition, for example `tool`'),
    id: z.string(),
    project_id: z.string(),
    name: z.string().nullable(),
    author: z
      .object({ kind: z.enum(['user', 'api_key']), id: z.string() })
      .describe("Author: the user or one of the user's project keys"),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'AuthoredDefinition' })

/**
 * Returns a page of the definitions authored by a user and the user's keys, newest first; they stop working once these
 * are deleted. A user token sees all of them, a key or grant the ones in projects that it may see. Each kind has an index
 * on the ID of its authors.
 */
export async function listAuthoredDefinitions(db: Queryable, caller: Caller, bounds: Page, userId: string) {
  const authors = sql.fragment`(select ${userId}::text union all select k.id from project_keys k where k.user_id = ${userId})`
  const parts = kinds.all().flatMap(kind => {
    if (!kind.authored) return []
    const author = sql.identifier([kind.authored])
    const name = 'name' in ((kind.row as z.ZodObject).shape ?? {}) ? sql.fragment`name` : sql.fragment`null::text`
    return sql.fragment`
      select ${kind.name} as kind, id, project_id, ${name} as name, created_at,
        jsonb_build_object('kind', ${author} ->> 'type', 'id', ${author} ->> 'id') as author
      from ${sql.identifier([kind.table])} where ${author} ->> 'id' in ${authors}`
  })
  const from = sql.fragment`(${sql.join(parts, sql.fragment` union all `)}) t`
  return pageResult(
    { db, page: bounds },
    {
      columns: sql.fragment`t.*`,
      from,
      rows: await visibleTo(db, caller, from),
      time: sql.fragment`t.created_at`,
      order: sql.fragment`t.created_at desc, t.id desc`,
      present: found => found,
    },
  )
}

const projectRow = sql.type(z.object({ project_id: z.string() }))

/** Returns the condition of the rows whose project a key or grant may see; undefined for a user token. */
async function visibleTo(db: Queryable, caller: Caller, from: Fragment): Promise<Fragment | undefined> {
  if (caller.project_id !== null) return sql.fragment`t.project_id = ${caller.project_id}`
  if (caller.credential.type === 'user') return undefined
  const projects = await db.anyFirst(projectRow`select distinct t.project_id from ${from}`)
  const visible = projects.filter(id => canSeeProject(caller, id))
  return sql.fragment`t.project_id = any(${sql.array(visible, 'text')})`
}

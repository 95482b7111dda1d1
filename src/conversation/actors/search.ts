import { listTargetOf, visibleRows } from '#core/api/access.ts'
import { isIdOf, kinds } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { allOf, type Fragment, sql, substring } from '#core/db/sql.ts'
import { actorKind } from './model.ts'

type Reader = Pick<Context, 'caller' | 'project'>

/** Kinds whose IDs lead to their end user, with the permission to see that they belong to it. */
const OWNED: readonly (readonly [kind: string, action: string])[] = [
  ['session', 'sessions:ListSessions'],
  ['conversation', 'conversations:ListConversations'],
  ['generation', 'generations:ListGenerations'],
]

/**
 * Condition of the actors `t` that a text finds: by an ID of the actor, or of a session, conversation or generation that the
 * caller may list, by the primary keys; by a part of the name or external ID, which reads the actors of the project
 * (actors_project).
 */
export function foundActors({ caller, project }: Reader, search: string): Fragment {
  const text = search.trim()
  if (isIdOf(actorKind, text)) return sql.fragment`t.id = ${text}`
  for (const [name, action] of OWNED) {
    const kind = kinds.get(name)
    if (!isIdOf(kind, text)) continue
    const { rows } = visibleRows(
      caller,
      { ...listTargetOf(kind), action, project },
      {
        project: sql.fragment`o.project_id`,
        id: sql.fragment`o.id`,
        ...(kind.tags ? { tags: sql.fragment`o.tags` } : {}),
      },
    )
    return sql.fragment`t.id = (select o.actor_id from ${sql.identifier([kind.table])} o where o.id = ${text} and ${rows})`
  }
  return sql.fragment`(t.name ilike ${substring(text)} or t.external_id ilike ${substring(text)})`
}

/** Condition of the rows whose end user, with the ID in a column, is found by a text and may be got by the caller. */
export function hasFoundActor({ caller, project }: Reader, column: Fragment, search: string): Fragment {
  const { rows } = visibleRows(
    caller,
    { ...listTargetOf(actorKind), action: 'actors:GetActor', project },
    { project: sql.fragment`t.project_id`, id: sql.fragment`t.id`, tags: sql.fragment`t.tags` },
  )
  return sql.fragment`${column} in (
    select t.id from actors t where ${allOf([foundActors({ caller, project }, search), rows])})`
}

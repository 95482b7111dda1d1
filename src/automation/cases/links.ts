import { isIdOf, type Kind, kinds } from '#core/api/kind.ts'
import { type Context, operations } from '#core/api/operation.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type CasePrincipal, type CaseRow, type LinkRow, type LinkType, linkKind } from './model.ts'
import { filterExistingIds, insertLink } from './store.ts'
import type { TimelineEvent } from './timeline.ts'

/** Returns the action of the operation that gets one row of a kind; null if there is none. */
export const readActionOf = (kind: Kind): string | null =>
  operations
    .all()
    .find(
      ({ kind: about, method, shape, path, param }) =>
        about?.name === kind.name && method === 'get' && shape === 'item' && path.endsWith(`{${param}}`),
    )?.action ?? null

/**
 * Refuses a link to the case itself, to a record outside its project, and to a record that the caller may not read.
 * @throws VALIDATION_FAILED
 */
export async function requireLinkTarget(
  { tx, allowed }: Pick<Context, 'tx' | 'allowed'>,
  { id, project_id }: Pick<CaseRow, 'id' | 'project_id'>,
  type: LinkType,
  targetId: string,
): Promise<void> {
  if (targetId === id)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'target_id', message: 'must not be the case itself' })
  const kind = kinds.find(type)
  const row = kind && isIdOf(kind, targetId) ? await kind.reference(tx, targetId, project_id) : null
  const action = kind && readActionOf(kind)
  if (!kind || !row || !action || !allowed(action, { kind, row }))
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'target_id',
      message: `${type.replaceAll('_', ' ')} not found in this project`,
    })
}

/** Links a case to a record of its project. Requires the row lock. `row` is null if the link exists. */
export async function linkCase(
  tx: Tx,
  { id: case_id, project_id }: Pick<CaseRow, 'id' | 'project_id'>,
  created_by: CasePrincipal | null,
  { type, target_id }: Pick<LinkRow, 'type' | 'target_id'>,
): Promise<{ row: LinkRow | null; timelineEvents: TimelineEvent[] }> {
  const row = await insertLink(tx, { id: newId(linkKind.prefix), project_id, case_id, type, target_id, created_by })
  return { row, timelineEvents: row ? [{ kind: 'link_added', data: { link_id: row.id, type, target_id } }] : [] }
}

/** Presents links with whether their targets exist. One statement per type. */
export async function presentLinks(db: Queryable, links: readonly LinkRow[]): Promise<object[]> {
  const existing = new Set<string>()
  for (const type of new Set(links.map(link => link.type))) {
    const kind = kinds.find(type)
    const ofType = links.filter(link => link.type === type)
    if (!kind || ofType.length === 0) continue
    for (const id of await filterExistingIds(
      db,
      kind.table,
      ofType[0].project_id,
      ofType.map(link => link.target_id),
    ))
      existing.add(`${type} ${id}`)
  }
  return links.map(link => {
    const { created_by, created_at, ...fields } = linkKind.present(link) as LinkRow
    return { ...fields, target_exists: existing.has(`${link.type} ${link.target_id}`), created_by, created_at }
  })
}

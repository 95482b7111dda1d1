import { raiseInvalid } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf, type Kind, kinds } from '../../core/api/kind.ts'
import { type Context, operations } from '../../core/api/operation.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { type CasePrincipal, type CaseRow, type LinkRow, type LinkType, linkKind } from './model.ts'
import { existingIdsIn, insertLink } from './store.ts'
import type { TimelineEvent } from './timeline.ts'

/** The action that reads one row of a kind; null for a kind that is not read by itself. */
export const readActionOf = (kind: Kind): string | null =>
  operations
    .all()
    .find(
      ({ kind: about, method, shape, path, param }) =>
        about?.name === kind.name && method === 'get' && shape === 'item' && path.endsWith(`{${param}}`),
    )?.action ?? null

/**
 * Refuses a link of a case to itself, to what its project does not have, and to what the caller may not read.
 * @throws VALIDATION_FAILED
 */
export async function requireLinkTarget(
  { tx, allowed }: Pick<Context, 'tx' | 'allowed'>,
  { id, project_id }: Pick<CaseRow, 'id' | 'project_id'>,
  type: LinkType,
  targetId: string,
): Promise<void> {
  if (targetId === id) raiseInvalid({ code: 'INVALID_VALUE', path: 'target_id', message: 'names the case itself' })
  const kind = kinds.find(type)
  const row = kind && isIdOf(kind, targetId) ? await kind.reference(tx, targetId, project_id) : null
  const action = kind && readActionOf(kind)
  if (!kind || !row || !action || !allowed(action, { kind, row }))
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'target_id',
      message: `names no ${type.replaceAll('_', ' ')} of the project`,
    })
}

/**
 * Links a case, whose row the caller holds, to something of its project. `row` is null where it was linked already;
 * `happenings` are what the timeline is to say.
 */
export async function linkCase(
  tx: Tx,
  { id: case_id, project_id }: Pick<CaseRow, 'id' | 'project_id'>,
  created_by: CasePrincipal | null,
  { type, target_id }: Pick<LinkRow, 'type' | 'target_id'>,
): Promise<{ row: LinkRow | null; happenings: TimelineEvent[] }> {
  const row = await insertLink(tx, { id: newId(linkKind.prefix), project_id, case_id, type, target_id, created_by })
  return { row, happenings: row ? [{ kind: 'link_added', data: { link_id: row.id, type, target_id } }] : [] }
}

/** Links as they are shown: with whether what they name is still there. One statement a type. */
export async function presentLinks(db: Queryable, links: readonly LinkRow[]): Promise<object[]> {
  const there = new Set<string>()
  for (const type of new Set(links.map(link => link.type))) {
    const kind = kinds.find(type)
    const named = links.filter(link => link.type === type)
    if (!kind || named.length === 0) continue
    for (const id of await existingIdsIn(
      db,
      kind.table,
      named[0].project_id,
      named.map(link => link.target_id),
    ))
      there.add(`${type} ${id}`)
  }
  return links.map(link => {
    const { created_by, created_at, ...shown } = linkKind.present(link) as LinkRow
    return { ...shown, target_exists: there.has(`${link.type} ${link.target_id}`), created_by, created_at }
  })
}
